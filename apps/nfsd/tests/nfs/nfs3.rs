//! The procedures of NFS version 3 over a directory, called by a client of another implementation. Needs root.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use crate::client::{Client, TRANSFER_MAX, mode, status};
use nfs3_types::nfs3::NFS_PROGRAM as Proc;
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Opaque;

fn unchecked(mode_bits: u32) -> createhow3 {
    createhow3::UNCHECKED(mode(mode_bits))
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251).to_le_bytes()[0]).collect()
}

#[test]
fn data_written_is_read_back_at_any_size() {
    let client = Client::new();
    let file = client.create(&client.root, "file", unchecked(0o640)).unwrap();
    let mut end = 0;
    for (size, stable) in [
        (1, stable_how::UNSTABLE),
        (3, stable_how::DATA_SYNC),
        (4096, stable_how::FILE_SYNC),
        (65536, stable_how::UNSTABLE),
    ] {
        let data = pattern(size);
        let written = client.write(&file, end, &data, stable).unwrap();
        assert_eq!(
            (written.count as usize, written.committed, written.verf),
            (size, stable, writeverf3([0, 0, 0, 0, 0, 0, 0, 1]))
        );
        end += size as u64;
        assert_eq!(client.read(&file, end - size as u64, TRANSFER_MAX).unwrap(), (data, true));
    }
    assert_eq!(client.attributes(&file).unwrap().size, end);
    assert!(!client.read(&file, 0, 1).unwrap().1);
    assert_eq!(client.read(&file, end, 10).unwrap(), (vec![], true));
    assert_eq!(
        client.read(&file, 0, u32::MAX).unwrap().0.len(),
        TRANSFER_MAX as usize,
        "never more than rtmax"
    );
    let arguments = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    let committed: COMMIT3res = client.call(Proc::NFSPROC3_COMMIT, &arguments);
    assert_eq!(status(committed).unwrap().verf, writeverf3([0, 0, 0, 0, 0, 0, 0, 1]));
    // A hole reads as zeros, and takes no space.
    client.write(&file, 1 << 40, b"far", stable_how::UNSTABLE).unwrap();
    assert_eq!(client.read(&file, 1 << 30, 8).unwrap(), (vec![0; 8], false));
    assert_eq!(
        client.write(&client.root, 0, b"x", stable_how::UNSTABLE).err(),
        Some(nfsstat3::NFS3ERR_ISDIR)
    );
    assert_eq!(client.read(&client.root, 0, 1).err(), Some(nfsstat3::NFS3ERR_ISDIR));
}

#[test]
fn files_are_created_in_three_ways() {
    let client = Client::new();
    let root = &client.root;
    let first = client.create(root, "a", unchecked(0o7640)).unwrap();
    assert_eq!(client.attributes(&first).unwrap().mode, 0o7640, "no mask of the server applies");
    client.write(&first, 0, b"12345", stable_how::UNSTABLE).unwrap();
    // UNCHECKED finds it and sets the size only.
    let empty = sattr3 { size: Nfs3Option::Some(2), ..mode(0) };
    assert_eq!(client.create(root, "a", createhow3::UNCHECKED(empty)).unwrap(), first);
    let found = client.attributes(&first).unwrap();
    assert_eq!((found.size, found.mode), (2, 0o7640));
    let guarded = client.create(root, "a", createhow3::GUARDED(mode(0o600)));
    assert_eq!(guarded.err(), Some(nfsstat3::NFS3ERR_EXIST));
    client.create(root, "b", createhow3::GUARDED(mode(0o600))).unwrap();
    // EXCLUSIVE: only the same call finds what it has created.
    let verifier = createverf3([0x92, 0x34, 0x56, 0x78, 0xff, 0xff, 0xff, 0xfe]);
    let once = client.create(root, "c", createhow3::EXCLUSIVE(verifier)).unwrap();
    assert_eq!(client.create(root, "c", createhow3::EXCLUSIVE(verifier)).unwrap(), once);
    let other = client.create(root, "c", createhow3::EXCLUSIVE(createverf3([1; 8])));
    assert_eq!(other.err(), Some(nfsstat3::NFS3ERR_EXIST));
    client.mkdir(root, "dir").unwrap();
    assert_eq!(
        client.create(root, "dir", createhow3::EXCLUSIVE(verifier)).err(),
        Some(nfsstat3::NFS3ERR_EXIST)
    );
}

#[test]
fn attributes_are_set_and_guarded() {
    let client = Client::new();
    let file = client.create(&client.root, "file", unchecked(0o600)).unwrap();
    let times = sattr3 {
        mode: Nfs3Option::Some(0o4755),
        uid: Nfs3Option::Some(12),
        gid: Nfs3Option::Some(34),
        size: Nfs3Option::Some(1000),
        atime: set_atime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 100, nseconds: 7000 }),
        mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 200, nseconds: 0 }),
    };
    client.set(&file, times, Nfs3Option::None).unwrap();
    let found = client.attributes(&file).unwrap();
    assert_eq!((found.mode, found.uid, found.gid, found.size), (0o4755, 12, 34, 1000));
    assert_eq!(found.atime, nfstime3 { seconds: 100, nseconds: 7000 });
    assert_eq!(found.mtime, nfstime3 { seconds: 200, nseconds: 0 });
    let past = nfstime3 { seconds: found.ctime.seconds - 1, ..found.ctime };
    let refused = client.set(&file, mode(0), Nfs3Option::Some(past));
    assert_eq!(refused.err(), Some(nfsstat3::NFS3ERR_NOT_SYNC));
    client.set(&file, mode(0o644), Nfs3Option::Some(found.ctime)).unwrap();
    assert_eq!(client.attributes(&file).unwrap().mode, 0o644);
    let now = sattr3 { mtime: set_mtime::SET_TO_SERVER_TIME, ..sattr3::default() };
    client.set(&file, now, Nfs3Option::None).unwrap();
    let found = client.attributes(&file).unwrap();
    assert!(found.mtime.seconds > 1_000_000_000);
    // The kernel takes some of these for flags, the present for instance.
    for nseconds in [1_000_000_000, 0x3fff_fffe, 0x3fff_ffff, u32::MAX] {
        let atime = set_atime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 1, nseconds });
        let refused = client.set(&file, sattr3 { atime, ..sattr3::default() }, Nfs3Option::None);
        assert_eq!(refused.err(), Some(nfsstat3::NFS3ERR_INVAL), "{nseconds} ns");
        assert_eq!(client.attributes(&file).unwrap().atime, found.atime);
    }
}

#[test]
fn every_kind_of_object_can_be_made_and_removed() {
    let client = Client::new();
    let root = &client.root;
    client.mkdir(root, "dir").unwrap();
    let dir = client.lookup(root, "dir").unwrap();
    client.create(&dir, "file", unchecked(0o600)).unwrap();
    for (name, what) in [
        ("fifo", mknoddata3::NF3FIFO(mode(0o622))),
        ("socket", mknoddata3::NF3SOCK(mode(0o600))),
        (
            "null",
            mknoddata3::NF3CHR(devicedata3 {
                dev_attributes: mode(0o666),
                spec: specdata3 { specdata1: 1, specdata2: 3 },
            }),
        ),
    ] {
        let made: MKNOD3res =
            client.call(Proc::NFSPROC3_MKNOD, &MKNOD3args { where_: client.at(&dir, name), what });
        let object = status(made).unwrap().obj.unwrap();
        assert_eq!(client.read(&object, 0, 1).err(), Some(nfsstat3::NFS3ERR_INVAL), "{name} is never opened");
    }
    let folder = client.folder.path().join("dir");
    assert!(fs::metadata(folder.join("fifo")).unwrap().file_type().is_fifo());
    assert!(fs::metadata(folder.join("socket")).unwrap().file_type().is_socket());
    assert_eq!(fs::metadata(folder.join("null")).unwrap().rdev(), rustix::fs::makedev(1, 3));
    for target in ["file", "/etc/passwd", &"x".repeat(3500)] {
        let symlink = symlinkdata3 {
            symlink_attributes: mode(0o777),
            symlink_data: nfspath3(Opaque::borrowed(target.as_bytes())),
        };
        let made: SYMLINK3res =
            client.call(Proc::NFSPROC3_SYMLINK, &SYMLINK3args { where_: client.at(&dir, "link"), symlink });
        let link = status(made).unwrap().obj.unwrap();
        assert_eq!(client.attributes(&link).unwrap().type_, ftype3::NF3LNK);
        let found: READLINK3res<'static> =
            client.call(Proc::NFSPROC3_READLINK, &READLINK3args { symlink: link.clone() });
        assert_eq!(status(found).unwrap().data.as_ref(), target.as_bytes());
        assert_eq!(client.read(&link, 0, 1).err(), Some(nfsstat3::NFS3ERR_INVAL), "a link is not followed");
        client.remove(&dir, "link").unwrap();
    }
    let rmdir = |name| {
        status(client.call::<RMDIR3res>(Proc::NFSPROC3_RMDIR, &RMDIR3args { object: client.at(root, name) }))
    };
    assert_eq!(rmdir("dir").err(), Some(nfsstat3::NFS3ERR_NOTEMPTY));
    for name in ["file", "fifo", "socket", "null"] {
        client.remove(&dir, name).unwrap();
    }
    assert_eq!(client.remove(root, "dir").err(), Some(nfsstat3::NFS3ERR_ISDIR));
    rmdir("dir").unwrap();
    assert_eq!(rmdir("dir").err(), Some(nfsstat3::NFS3ERR_NOENT));
    assert_eq!(client.attributes(&dir).err(), Some(nfsstat3::NFS3ERR_STALE));
}

#[test]
fn names_move_and_multiply() {
    let client = Client::new();
    let root = &client.root;
    let dir = client.mkdir(root, "dir").unwrap();
    let file = client.create(root, "file", unchecked(0o600)).unwrap();
    let rename = |from: diropargs3<'static>, to| {
        status(client.call::<RENAME3res>(Proc::NFSPROC3_RENAME, &RENAME3args { from, to })).map(|_| ())
    };
    rename(client.at(root, "file"), client.at(&dir, "moved")).unwrap();
    assert_eq!(
        client.lookup(&dir, "moved").unwrap(),
        file,
        "the handle is that of the object, not of its name"
    );
    assert_eq!(client.lookup(root, "file").err(), Some(nfsstat3::NFS3ERR_NOENT));
    let link = LINK3args { file: file.clone(), link: client.at(root, "again") };
    let linked: LINK3res = client.call(Proc::NFSPROC3_LINK, &link);
    status(linked).unwrap();
    assert_eq!(client.attributes(&file).unwrap().nlink, 2);
    assert_eq!(client.lookup(root, "again").unwrap(), file);
    assert_eq!(rename(client.at(root, "."), client.at(root, "x")).err(), Some(nfsstat3::NFS3ERR_EXIST));
    // An object without a name stays while something else has its place.
    client.create(root, "other", unchecked(0o600)).unwrap();
    rename(client.at(root, "other"), client.at(root, "again")).unwrap();
    assert_eq!(client.attributes(&file).unwrap().nlink, 1);
}

#[test]
fn listings_have_each_name_once_whatever_their_size() {
    let client = Client::new();
    let mut expected: BTreeSet<String> =
        (0..700).map(|at| format!("file {at} {}", "n".repeat(at % 40))).collect();
    for name in &expected {
        fs::write(client.folder.path().join(name), name).unwrap();
    }
    expected.extend([".".to_owned(), "..".to_owned()]);
    let text = |name: &filename3<'_>| String::from_utf8(name.as_ref().to_vec()).unwrap();
    for count in [400, 4096, 65536, u32::MAX] {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let arguments =
                READDIR3args { dir: client.root.clone(), cookie, cookieverf: cookieverf3::default(), count };
            let listed =
                status(client.call::<READDIR3res<'static>>(Proc::NFSPROC3_READDIR, &arguments)).unwrap();
            names.extend(listed.reply.entries.0.iter().map(|entry| text(&entry.name)));
            cookie = listed.reply.entries.0.last().map_or(cookie, |entry| entry.cookie);
            if listed.reply.eof {
                break;
            }
        }
        assert_eq!(names.len(), expected.len(), "{count} bytes at a time");
        assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected);
    }
    for (dircount, maxcount) in [(100, 1000), (1000, 100_000), (u32::MAX, u32::MAX)] {
        let (mut names, mut cookie) = (BTreeSet::new(), 0);
        loop {
            let dir = client.root.clone();
            let arguments =
                READDIRPLUS3args { dir, cookie, cookieverf: cookieverf3::default(), dircount, maxcount };
            let listed =
                status(client.call::<READDIRPLUS3res<'static>>(Proc::NFSPROC3_READDIRPLUS, &arguments))
                    .unwrap();
            for entry in &listed.reply.entries.0 {
                let (name, Nfs3Option::Some(found)) = (text(&entry.name), &entry.name_attributes) else {
                    panic!()
                };
                assert_eq!(
                    (found.fileid, &entry.name_handle),
                    (entry.fileid, &Nfs3Option::Some(client.lookup(&client.root, &name).unwrap()))
                );
                cookie = entry.cookie;
                names.insert(name);
            }
            if listed.reply.eof {
                break;
            }
        }
        assert_eq!(names, expected);
    }
    let arguments =
        READDIR3args { dir: client.root.clone(), cookie: 0, cookieverf: cookieverf3::default(), count: 110 };
    let listed = client.call::<READDIR3res<'static>>(Proc::NFSPROC3_READDIR, &arguments);
    assert_eq!(status(listed).err(), Some(nfsstat3::NFS3ERR_TOOSMALL));
}

#[test]
fn the_file_system_is_described() {
    let client = Client::new();
    let root = || client.root.clone();
    let info: FSINFO3res = client.call(Proc::NFSPROC3_FSINFO, &FSINFO3args { fsroot: root() });
    let info = status(info).unwrap();
    assert_eq!(
        (info.rtmax, info.wtmax, info.maxfilesize),
        (TRANSFER_MAX, TRANSFER_MAX, i64::MAX.unsigned_abs())
    );
    let space: FSSTAT3res = client.call(Proc::NFSPROC3_FSSTAT, &FSSTAT3args { fsroot: root() });
    let space = status(space).unwrap();
    assert!(space.tbytes >= space.fbytes && space.fbytes >= space.abytes && space.abytes > 0);
    let limits: PATHCONF3res = client.call(Proc::NFSPROC3_PATHCONF, &PATHCONF3args { object: root() });
    let limits = status(limits).unwrap();
    assert!(limits.name_max == 255 && limits.no_trunc && !limits.case_insensitive);
    assert_eq!(client.raw(PROGRAM, Proc::NFSPROC3_NULL as u32, &[]), [0_u8; 0], "NULL has no result");
}

#[test]
fn access_is_that_of_the_user() {
    let mut client = Client::new();
    let path = client.folder.path().to_path_buf();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let file = client.create(&client.root, "file", unchecked(0o640)).unwrap();
    std::os::unix::fs::chown(path.join("file"), Some(1000), Some(100)).unwrap();
    const ALL: u32 = 63;
    let (read, write) = (ACCESS3_READ, ACCESS3_MODIFY | ACCESS3_EXTEND);
    let dir_all = read | write | ACCESS3_LOOKUP | ACCESS3_DELETE;
    for (uid, groups, of_file, of_dir) in [
        (0, vec![0], read | write, dir_all),
        (1000, vec![5], read | write, read | ACCESS3_LOOKUP),
        (1001, vec![100], read, read | ACCESS3_LOOKUP),
        (1001, vec![7, 8, 100], read, read | ACCESS3_LOOKUP),
        (1001, vec![7], 0, read | ACCESS3_LOOKUP),
    ] {
        client.user = (uid, groups.clone());
        for (object, expected) in [(&file, of_file), (&client.root, of_dir)] {
            let arguments = ACCESS3args { object: object.clone(), access: ALL };
            let found: ACCESS3res = client.call(Proc::NFSPROC3_ACCESS, &arguments);
            assert_eq!(status(found).unwrap().access, expected, "user {uid}, groups {groups:?}");
        }
        let may_read = of_file & read != 0;
        assert_eq!(client.read(&file, 0, 1).is_ok(), may_read, "user {uid}, groups {groups:?}");
        let may_write = of_file & write != 0;
        assert_eq!(client.write(&file, 0, b"1", stable_how::UNSTABLE).is_ok(), may_write);
    }
    assert!(rustix::process::geteuid().is_root(), "the rights of users end with their calls");
}

/// Largest size of a file, and the largest offset.
const LARGEST: u64 = i64::MAX as u64;

#[test]
fn the_largest_file_ends_at_the_largest_offset() {
    let client = Client::in_memory();
    let path = client.folder.path().join("large");
    fs::File::create(&path).unwrap().set_len(LARGEST).unwrap();
    let file = client.lookup(&client.root, "large").unwrap();
    for (offset, length, expected) in [
        (LARGEST - 4095, 4096, 4095),
        (LARGEST - 1, TRANSFER_MAX, 1),
        (LARGEST - 1, 0, 0),
        (LARGEST, 4096, 0),
        (LARGEST + 1, 4096, 0),
        (u64::MAX, 4096, 0),
    ] {
        let read = client.read(&file, offset, length);
        let at_end = offset.saturating_add(expected) >= LARGEST;
        assert_eq!(read, Ok((vec![0; expected.try_into().unwrap()], at_end)), "READ of {length} at {offset}");
    }
    let write = |offset, data: &[u8]| {
        client.write(&file, offset, data, stable_how::FILE_SYNC).map(|written| written.count)
    };
    assert_eq!(write(LARGEST - 1, b"x"), Ok(1));
    assert_eq!(client.read(&file, LARGEST - 1, 9), Ok((b"x".to_vec(), true)));
    for (offset, data) in [(LARGEST - 1, &b"xy"[..]), (LARGEST, b"x"), (LARGEST + 1, b""), (u64::MAX, b"x")] {
        assert_eq!(write(offset, data), Err(nfsstat3::NFS3ERR_FBIG), "WRITE of {} at {offset}", data.len());
    }
    let size = |size| {
        let new = sattr3 { size: Nfs3Option::Some(size), ..sattr3::default() };
        client.set(&file, new, Nfs3Option::None)
    };
    assert_eq!(
        (size(LARGEST + 1), size(u64::MAX)),
        (Err(nfsstat3::NFS3ERR_FBIG), Err(nfsstat3::NFS3ERR_FBIG))
    );
    assert_eq!((size(5), size(LARGEST)), (Ok(()), Ok(())));
    for (offset, count) in [(LARGEST, 0), (LARGEST, 1), (u64::MAX, u32::MAX)] {
        let arguments = COMMIT3args { file: file.clone(), offset, count };
        let done: COMMIT3res = client.call(NFS_PROGRAM::NFSPROC3_COMMIT, &arguments);
        assert!(status(done).is_ok(), "COMMIT at {offset}: the whole file, wherever it begins");
    }
}
