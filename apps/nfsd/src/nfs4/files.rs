//! OPEN, OPEN_DOWNGRADE and CLOSE (RFC 8881 §18.16, §18.18, §18.2).

use iwarp_rpc::xdr::{Reader, Writer};
use nfs3_types::nfs3::{ACCESS3_EXECUTE, ACCESS3_MODIFY, ACCESS3_READ, createverf3, ftype3};

use super::attributes::{self, SIZE, VERIFIER};
use super::bitmap::Bitmap;
use super::names::{change_of, put_change};
use super::objects::component;
use super::{Compound, OPAQUE_MAX};
use crate::attributes::NewAttributes;
use crate::backend::New;
use crate::file::File;
use crate::server::Target;
use crate::state::{NewOpen, READ, Stateid, WRITE};
use crate::status::Status;

/// Access and deny modes.
const MODES: u32 = READ | WRITE;
/// Bits of the access mode that say which delegation a client would like, and the value for none.
const WANT_MASK: u32 = 0xff00;
const WANT_NONE: u32 = 0x0400;
/// Delegation types: none, and none with the reason.
const DELEGATE_NONE: u32 = 0;
const DELEGATE_NONE_EXT: u32 = 3;
/// Reasons for no delegation: the client wants none, or the server grants none for such a file.
const WHY_NOT_WANTED: u32 = 0;
const WHY_NOT_SUPPORTED: u32 = 3;
/// Flag of the result: locks follow POSIX.
const LOCKTYPE_POSIX: u32 = 4;

/// Way to create a file.
enum How {
    /// The file must exist.
    No,
    /// An existing file is opened, and truncated if the attributes have a size.
    Unchecked(NewAttributes, Bitmap),
    /// The file must not exist.
    Guarded(NewAttributes, Bitmap),
    /// The file must not exist, unless a repetition of this call has made it.
    Exclusive(createverf3, NewAttributes, Bitmap),
}

impl How {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Status> {
        match reader.u32()? {
            0 => return Ok(Self::No),
            1 => {}
            _ => return Err(Status::BadXdr),
        }
        let mode = reader.u32()?;
        match mode {
            0 | 1 => {
                let (new, given) = attributes::read(reader)?;
                Ok(if mode == 0 { Self::Unchecked(new, given) } else { Self::Guarded(new, given) })
            }
            2 => {
                Ok(Self::Exclusive(createverf3(reader.array()?), NewAttributes::default(), Bitmap::default()))
            }
            3 => {
                let verifier = createverf3(reader.array()?);
                let (new, given) = attributes::read(reader)?;
                if !given.and(VERIFIER).is_empty() {
                    return Err(Status::Inval);
                }
                Ok(Self::Exclusive(verifier, new, given))
            }
            _ => Err(Status::BadXdr),
        }
    }
}

/// A file found or made by OPEN.
struct Opened {
    handle: Vec<u8>,
    made: bool,
    /// Attributes that were set.
    set: Bitmap,
    /// Size to truncate an existing file to.
    truncate: Option<NewAttributes>,
}

/// Arguments of OPEN that the claim does not determine.
struct Arguments<'a> {
    access: u32,
    deny: u32,
    want: u32,
    owner: &'a [u8],
    how: How,
}

impl<'a> Arguments<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Status> {
        let (_, share, deny, _) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u64()?);
        let owner = reader.opaque(OPAQUE_MAX)?;
        let (access, want) = (share & MODES, share & WANT_MASK);
        if access == 0 || deny & !MODES != 0 {
            return Err(Status::Inval);
        }
        Ok(Self { access, deny, want, owner, how: How::read(reader)? })
    }
}

impl Compound<'_, '_> {
    pub(super) fn open(&mut self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let client = self.client()?;
        let arguments = Arguments::read(reader)?;
        let claim = reader.u32()?;
        let handle = self.handle()?.to_vec();
        let start = self.target(&handle)?;
        let before = change_of(&start);
        let reclaim = claim == 1;
        let name = match claim {
            0 => Some(component(reader)?),
            // A reclaim states the delegation that the client had: none.
            1 if reader.u32()? == 0 => None,
            1 => return Err(Status::ReclaimBad),
            4 => None,
            2 | 3 | 5 | 6 => return Err(Status::NotSupp),
            _ => return Err(Status::BadXdr),
        };
        self.server.nfs4.state().may_claim(client, reclaim)?;
        let writes = arguments.access & WRITE != 0 || !matches!(arguments.how, How::No);
        if writes && !start.rule.write {
            return Err(Status::RoFs);
        }
        let opened = match name {
            Some(name) => self.find_or_create(&start, name, &arguments.how)?,
            None => Opened { handle: handle.clone(), made: false, set: Bitmap::default(), truncate: None },
        };
        let stateid = self.open_file(client, &arguments, &opened, reclaim)?;
        let mut result = Writer::new();
        put_change(&mut result, before, &start);
        self.go_to(opened.handle);
        self.put_stateid(stateid, out);
        out.fixed(&result.into_bytes());
        out.u32(LOCKTYPE_POSIX);
        opened.set.put(out);
        match arguments.want {
            0 => out.u32(DELEGATE_NONE),
            want => {
                out.u32(DELEGATE_NONE_EXT);
                out.u32(if want == WANT_NONE { WHY_NOT_WANTED } else { WHY_NOT_SUPPORTED });
            }
        }
        Ok(())
    }

    fn find_or_create(&self, dir: &Target<'_>, name: &[u8], how: &How) -> Result<Opened, Status> {
        let make = |new: &New<'_>| dir.export.backend.create(&dir.user, dir.object, name, new);
        let found =
            |made, set, truncate| Ok(Opened { handle: self.found_in(dir, name)?, made, set, truncate });
        match how {
            How::No => found(false, Bitmap::default(), None),
            How::Unchecked(attributes, given) | How::Guarded(attributes, given) => {
                let new = New::File { attributes: *attributes, exclusive: true };
                match make(&new).map_err(Status::from) {
                    Ok(object) => {
                        let handle = self.sealed(dir, &object)?;
                        Ok(Opened { handle, made: true, set: *given, truncate: None })
                    }
                    Err(Status::Exist) if matches!(how, How::Unchecked(..)) => {
                        let size = given.and(Bitmap::of(&[SIZE]));
                        let new = NewAttributes::only_size(attributes.size);
                        let truncates = attributes.size == Some(0);
                        found(
                            false,
                            if truncates { size } else { Bitmap::default() },
                            truncates.then_some(new),
                        )
                    }
                    Err(status) => Err(status),
                }
            }
            How::Exclusive(verifier, attributes, given) => {
                let object = make(&New::FileOnce(*verifier))?;
                dir.export.backend.set_attributes(&dir.user, &object, attributes, None)?;
                let set = Bitmap(given.0 | VERIFIER.0);
                Ok(Opened { handle: self.sealed(dir, &object)?, made: true, set, truncate: None })
            }
        }
    }

    /// Opens a regular file with the rights of the user, and keeps it.
    fn open_file(
        &self,
        client: u64,
        arguments: &Arguments<'_>,
        opened: &Opened,
        reclaim: bool,
    ) -> Result<Stateid, Status> {
        let file = self.target(&opened.handle)?;
        let backend = &file.export.backend;
        match backend.attributes(file.object)?.kind {
            ftype3::NF3REG => {}
            ftype3::NF3DIR => return Err(Status::IsDir),
            ftype3::NF3LNK => return Err(Status::Symlink),
            _ => return Err(Status::WrongType),
        }
        let (reads, writes) = (arguments.access & READ != 0, arguments.access & WRITE != 0);
        // Who has created the file may open it whatever its mode says; so may who had it open before the restart.
        if !opened.made && !reclaim {
            let rights = ACCESS3_READ | ACCESS3_EXECUTE | ACCESS3_MODIFY;
            let granted = backend.access(&file.user, file.object, rights)?;
            let read = !reads || granted & (ACCESS3_READ | ACCESS3_EXECUTE) != 0;
            if !read || writes && granted & ACCESS3_MODIFY == 0 {
                return Err(Status::Access);
            }
        }
        let open = |write| backend.open(&file.user, file.object, write);
        let held = |wanted: bool, write| -> Result<Option<File>, Status> {
            if wanted { Ok(Some(open(write)?)) } else { Ok(None) }
        };
        let (read, write) = (held(reads, false)?, held(writes, true)?);
        let new = NewOpen {
            client,
            owner: arguments.owner,
            file: &opened.handle,
            access: arguments.access,
            deny: arguments.deny,
            read,
            write,
        };
        let stateid = self.server.nfs4.state().open(new)?;
        let truncated = match &opened.truncate {
            Some(size) => backend.set_attributes(&file.user, file.object, size, None),
            None => Ok(()),
        };
        if truncated.is_err() && stateid.is_first() {
            // The client does not learn of the open, which would reserve its share for ever.
            self.server.nfs4.state().close(client, stateid, &opened.handle)?;
        }
        truncated?;
        Ok(stateid)
    }

    pub(super) fn downgrade(&mut self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (stateid, _) = (self.stateid(reader)?, reader.u32()?);
        let (access, deny) = (reader.u32()? & MODES, reader.u32()?);
        let client = self.client()?;
        let stateid = self.server.nfs4.state().downgrade(client, stateid, self.handle()?, (access, deny))?;
        self.put_stateid(stateid, out);
        Ok(())
    }

    pub(super) fn close(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        reader.u32()?;
        let stateid = self.stateid(reader)?;
        self.server.nfs4.state().close(self.client()?, stateid, self.handle()?)?.put(out);
        Ok(())
    }
}
