//! Regions of a daemon as files of NFS version 3, called by a client of another implementation.

use crate::client::{Client, call_bytes, mode, status};
use crate::daemon::{BOTH, Daemon, client as mounted, server, table};
use iwarp_nfsd::{Payload, Selection};
use iwarp_rpc::xdr::{Chunk, Reader, Writer};
use iwarp_server::Peer;
use iwarp_verbs::Access;
use nfs3_types::nfs3::NFS_PROGRAM as Proc;
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Pack};

fn names(client: &Client) -> Vec<(String, u64)> {
    let arguments =
        READDIR3args { dir: client.root.clone(), cookie: 0, cookieverf: cookieverf3::default(), count: 4096 };
    let listed: READDIR3res<'static> = client.call(Proc::NFSPROC3_READDIR, &arguments);
    let listed = status(listed).unwrap();
    assert!(listed.reply.eof);
    let entries = listed.reply.entries.0.iter();
    let name = |name: &filename3<'_>| String::from_utf8(name.0.to_vec()).unwrap();
    entries.map(|entry| (name(&entry.name), entry.fileid)).collect()
}

fn files(client: &Client) -> Vec<String> {
    let mut files: Vec<_> = names(client).into_iter().map(|(name, _)| name).collect();
    files.retain(|name| name != "." && name != "..");
    files.sort();
    files
}

fn access(client: &Client, object: &nfs_fh3) -> u32 {
    let arguments = ACCESS3args { object: object.clone(), access: 0x3f };
    status(client.call::<ACCESS3res>(Proc::NFSPROC3_ACCESS, &arguments)).unwrap().access
}

fn size(size: u64) -> sattr3 {
    sattr3 { size: Nfs3Option::Some(size), ..sattr3::default() }
}

#[test]
fn the_bytes_of_a_file_are_those_of_the_region() {
    let daemon = Daemon::default();
    let memory = daemon.register("lab", 10_000, BOTH, true);
    let client = mounted(&table(&daemon), Selection::Public, true);
    let file = client.lookup(&client.root, "lab").unwrap();
    assert_eq!(daemon.opens(), 0, "a region is registered once a client uses it");
    let written = client.write(&file, 9_000, b"by a client", stable_how::UNSTABLE).unwrap();
    assert_eq!((written.count, written.committed), (11, stable_how::FILE_SYNC), "nothing is left to commit");
    assert_eq!(memory.all()[9_000..9_011], *b"by a client");
    memory.all()[..9].copy_from_slice(b"by a peer");
    assert_eq!(client.read(&file, 0, 9).unwrap(), (b"by a peer".to_vec(), false));
    assert_eq!(client.read(&file, 9_996, 100).unwrap(), (vec![0; 4], true));
    assert_eq!(client.read(&file, 10_000, 1).unwrap(), (vec![], true));
    assert_eq!(client.read(&file, u64::MAX, 1).unwrap(), (vec![], true));
    let commit = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    let done: COMMIT3res = client.call(Proc::NFSPROC3_COMMIT, &commit);
    assert_eq!(status(done).unwrap().verf, written.verf);
    assert_eq!(daemon.opens(), 1);
}

/// Linux takes the header of each READ's reply for as long as that of the first, or for one with attributes: if it is
/// shorter, bytes of the header end up in the data that RDMA Writes have placed.
#[test]
fn replies_to_read_have_attributes_which_do_not_say_that_the_data_is_old() {
    let daemon = Daemon::default();
    daemon.register("lab", 10_000, BOTH, true);
    let client = mounted(&table(&daemon), Selection::Public, true);
    let file = client.lookup(&client.root, "lab").unwrap();
    let found = client.attributes(&file).unwrap();
    for _ in 0..2 {
        let arguments = READ3args { file: file.clone(), offset: 0, count: 100 };
        let read: READ3res<'static> = client.call(Proc::NFSPROC3_READ, &arguments);
        assert_eq!(status(read).unwrap().file_attributes.unwrap().mtime, found.mtime);
        let written = client.write(&file, 0, b"1", stable_how::UNSTABLE).unwrap();
        assert_eq!(written.file_wcc.after.unwrap().mtime, found.mtime);
    }
    assert_ne!(client.attributes(&file).unwrap().mtime, found.mtime, "peers may have written meanwhile");
}

#[test]
fn the_size_is_fixed() {
    let daemon = Daemon::default();
    let memory = daemon.register("lab", 100, BOTH, true);
    let client = mounted(&table(&daemon), Selection::Public, true);
    let file = client.lookup(&client.root, "lab").unwrap();
    let unstable = stable_how::UNSTABLE;
    assert_eq!(client.write(&file, 98, b"123", unstable).unwrap().count, 2, "as much as there is room for");
    assert_eq!(memory.all()[97..], *b"\x0012");
    for end in [100, 101, u64::MAX] {
        assert_eq!(client.write(&file, end, b"3", unstable).err(), Some(nfsstat3::NFS3ERR_NOSPC));
    }
    let set = |attributes| client.set(&file, attributes, Nfs3Option::None).err();
    assert_eq!(set(size(100)), None);
    assert_eq!(set(size(99)), Some(nfsstat3::NFS3ERR_PERM));
    assert_eq!(set(size(101)), Some(nfsstat3::NFS3ERR_NOSPC));
    let truncated = client.create(&client.root, "lab", createhow3::UNCHECKED(size(0)));
    assert_eq!(truncated.err(), Some(nfsstat3::NFS3ERR_PERM));
    assert_eq!(client.create(&client.root, "lab", createhow3::UNCHECKED(mode(0o600))).unwrap(), file);
    let found = client.attributes(&file).unwrap();
    assert_eq!((found.size, found.used, found.mode), (100, 100, 0o666));
}

#[test]
fn attributes_are_the_daemons() {
    let daemon = Daemon::default();
    daemon.register("lab", 100, BOTH, true);
    let client = mounted(&table(&daemon), Selection::Public, true);
    let file = client.lookup(&client.root, "lab").unwrap();
    let set = |object, attributes| client.set(object, attributes, Nfs3Option::None).err();
    assert_eq!(set(&file, mode(0o600)), Some(nfsstat3::NFS3ERR_PERM));
    assert_eq!(set(&file, mode(0o666)), None);
    let past = set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 1, nseconds: 0 });
    assert_eq!(set(&file, sattr3 { mtime: past, ..sattr3::default() }), Some(nfsstat3::NFS3ERR_PERM));
    let touch = sattr3 { mtime: set_mtime::SET_TO_SERVER_TIME, ..sattr3::default() };
    assert_eq!(set(&file, touch), None);
    assert_eq!(set(&client.root, mode(0o777)), Some(nfsstat3::NFS3ERR_PERM));
    // A client that compares times does not take its cached data for the present.
    let (first, second) = (client.attributes(&file).unwrap(), client.attributes(&file).unwrap());
    assert!((first.mtime.seconds, first.mtime.nseconds) < (second.mtime.seconds, second.mtime.nseconds));
    let guarded = client.set(&file, size(100), Nfs3Option::Some(first.ctime));
    assert_eq!(guarded.err(), Some(nfsstat3::NFS3ERR_NOT_SYNC));
    let root = client.attributes(&client.root).unwrap();
    assert_eq!((root.type_, root.mode, root.fsid), (ftype3::NF3DIR, 0o555, first.fsid));
    assert_eq!(root.mtime, client.attributes(&client.root).unwrap().mtime, "the directory has not changed");
    let arguments = FSSTAT3args { fsroot: client.root.clone() };
    let space = status(client.call::<FSSTAT3res>(Proc::NFSPROC3_FSSTAT, &arguments)).unwrap();
    assert_eq!((space.tbytes, space.fbytes, space.tfiles, space.ffiles), (100, 0, 1, 0));
    let arguments = FSINFO3args { fsroot: client.root.clone() };
    let info = status(client.call::<FSINFO3res>(Proc::NFSPROC3_FSINFO, &arguments)).unwrap();
    assert_eq!(info.properties, FSF3_HOMOGENEOUS, "no links, and no times that can be set");
}

#[test]
fn only_the_daemon_makes_and_removes_regions() {
    let daemon = Daemon::default();
    daemon.register("lab", 100, BOTH, true);
    let client = mounted(&table(&daemon), Selection::Public, true);
    let root = &client.root;
    let file = client.lookup(root, "lab").unwrap();
    let refused = Some(nfsstat3::NFS3ERR_ACCES);
    assert_eq!(client.create(root, "new", createhow3::UNCHECKED(mode(0o600))).err(), refused);
    let exists = client.create(root, "lab", createhow3::GUARDED(mode(0o600)));
    assert_eq!(exists.err(), Some(nfsstat3::NFS3ERR_EXIST));
    assert_eq!(client.mkdir(root, "new").err(), refused);
    assert_eq!(client.mkdir(root, "lab").err(), Some(nfsstat3::NFS3ERR_EXIST));
    assert_eq!(client.remove(root, "lab").err(), refused);
    assert_eq!(client.remove(root, "new").err(), Some(nfsstat3::NFS3ERR_NOENT));
    let arguments = RMDIR3args { object: client.at(root, "lab") };
    let removed: RMDIR3res = client.call(Proc::NFSPROC3_RMDIR, &arguments);
    assert_eq!(status(removed).err(), Some(nfsstat3::NFS3ERR_NOTDIR));
    let arguments = RENAME3args { from: client.at(root, "lab"), to: client.at(root, "new") };
    assert_eq!(status(client.call::<RENAME3res>(Proc::NFSPROC3_RENAME, &arguments)).err(), refused);
    let arguments = LINK3args { file: file.clone(), link: client.at(root, "new") };
    let linked: LINK3res = client.call(Proc::NFSPROC3_LINK, &arguments);
    assert_eq!(status(linked).err(), refused);
    let symlink = symlinkdata3 {
        symlink_attributes: sattr3::default(),
        symlink_data: nfspath3(Opaque::borrowed(b"lab")),
    };
    let arguments = SYMLINK3args { where_: client.at(root, "new"), symlink };
    let linked: SYMLINK3res = client.call(Proc::NFSPROC3_SYMLINK, &arguments);
    assert_eq!(status(linked).err(), refused);
    assert_eq!(client.lookup(&file, "lab").err(), Some(nfsstat3::NFS3ERR_NOTDIR));
    assert_eq!(client.lookup(root, "..").unwrap(), *root);
    assert_eq!(client.lookup(root, "new").err(), Some(nfsstat3::NFS3ERR_NOENT));
    assert_eq!(client.read(root, 0, 1).err(), Some(nfsstat3::NFS3ERR_ISDIR));
    assert_eq!(files(&client), ["lab"]);
}

#[test]
fn rights_are_those_of_the_region_and_of_the_export() {
    const WRITE: u32 = ACCESS3_MODIFY | ACCESS3_EXTEND;
    let daemon = Daemon::default();
    for (name, rights) in [("read", Access::REMOTE_READ), ("write", Access::REMOTE_WRITE), ("both", BOTH)] {
        daemon.register(name, 100, rights, true);
    }
    let table = table(&daemon);
    let writer = mounted(&table, Selection::Public, true);
    let reader = mounted(&table, Selection::Public, false);
    let unstable = stable_how::UNSTABLE;
    for (name, granted, bits) in
        [("read", ACCESS3_READ, 0o444), ("write", WRITE, 0o222), ("both", ACCESS3_READ | WRITE, 0o666)]
    {
        let file = writer.lookup(&writer.root, name).unwrap();
        assert_eq!(
            (access(&writer, &file), access(&reader, &file)),
            (granted, granted & ACCESS3_READ),
            "{name}"
        );
        assert_eq!(writer.attributes(&file).unwrap().mode, bits);
        let refused = |may: u32| (granted & may == 0).then_some(nfsstat3::NFS3ERR_ACCES);
        assert_eq!(writer.read(&file, 0, 1).err(), refused(ACCESS3_READ), "{name}");
        assert_eq!(writer.write(&file, 0, b"x", unstable).err(), refused(WRITE), "{name}");
        assert_eq!(reader.write(&file, 0, b"x", unstable).err(), Some(nfsstat3::NFS3ERR_ROFS));
    }
    let both = writer.lookup(&writer.root, "both").unwrap();
    daemon.change("both", Access::REMOTE_READ);
    table.refresh();
    assert_eq!(writer.write(&both, 0, b"x", unstable).err(), Some(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(writer.read(&both, 0, 1).unwrap().0, b"x");
}

#[test]
fn regions_come_and_go_while_they_are_mounted() {
    let daemon = Daemon::default();
    daemon.register("old", 100, BOTH, true);
    let table = table(&daemon);
    let client = mounted(&table, Selection::Public, true);
    let old = client.lookup(&client.root, "old").unwrap();
    client.write(&old, 0, b"old", stable_how::UNSTABLE).unwrap();
    let before = client.attributes(&client.root).unwrap().mtime;
    let memory = daemon.register("new", 200, BOTH, true);
    table.refresh();
    assert_eq!(files(&client), ["new", "old"]);
    assert_ne!(client.attributes(&client.root).unwrap().mtime, before);
    // Another region takes the name: the handle does not name that one.
    daemon.deregister("old");
    let again = daemon.register("old", 100, BOTH, true);
    table.refresh();
    let stale = Some(nfsstat3::NFS3ERR_STALE);
    assert_eq!(client.read(&old, 0, 1).err(), stale);
    assert_eq!(client.write(&old, 0, b"x", stable_how::UNSTABLE).err(), stale);
    assert_eq!(
        (client.attributes(&old).err(), client.set(&old, size(0), Nfs3Option::None).err()),
        (stale, stale)
    );
    assert_eq!(again.all()[..3], [0; 3]);
    assert_eq!(client.read(&client.lookup(&client.root, "old").unwrap(), 0, 3).unwrap().0, [0; 3]);
    // Memory of a region that is gone is given back.
    let new = client.lookup(&client.root, "new").unwrap();
    client.read(&new, 0, 1).unwrap();
    assert_eq!(std::sync::Arc::strong_count(&memory), 3, "the daemon, the table and the test");
    daemon.deregister("new");
    table.refresh();
    assert_eq!(std::sync::Arc::strong_count(&memory), 1);
    assert_eq!(files(&client), ["old"]);
}

#[test]
fn a_region_that_is_replaced_while_it_is_opened_is_stale() {
    let daemon = Daemon::default();
    daemon.register("lab", 100, BOTH, true);
    let client = mounted(&table(&daemon), Selection::Public, true);
    let file = client.lookup(&client.root, "lab").unwrap();
    // The table has not noticed it: the name leads to the memory of the other one.
    daemon.deregister("lab");
    let other = daemon.register("lab", 100, BOTH, true);
    assert_eq!(client.write(&file, 0, b"x", stable_how::UNSTABLE).err(), Some(nfsstat3::NFS3ERR_STALE));
    assert_eq!(other.all()[0], 0);
    let file = client.lookup(&client.root, "lab").unwrap();
    client.write(&file, 0, b"x", stable_how::UNSTABLE).unwrap();
    assert_eq!(other.all()[0], b'x');
}

/// The file is as long as the list says: reads behind the end of the memory would fail, or find what is not there.
#[test]
fn memory_that_is_shorter_than_its_region_is_refused() {
    let daemon = Daemon::default();
    let memory = daemon.register("lab", 100, BOTH, true);
    memory.all().truncate(99);
    let table = table(&daemon);
    let client = mounted(&table, Selection::Public, true);
    let file = client.lookup(&client.root, "lab").unwrap();
    assert_eq!(client.read(&file, 0, 1).unwrap_err(), nfsstat3::NFS3ERR_IO);
    assert_eq!(client.write(&file, 0, b"x", stable_how::UNSTABLE).unwrap_err(), nfsstat3::NFS3ERR_IO);
    memory.all().push(0);
    assert_eq!(client.read(&file, 98, 9).unwrap(), (vec![0; 2], true));
}

#[test]
fn a_daemon_that_does_not_answer_delays_only_regions_that_were_not_opened() {
    let daemon = Daemon::default();
    daemon.register("open", 100, BOTH, true);
    daemon.register("other", 100, BOTH, true);
    let table = table(&daemon);
    let client = mounted(&table, Selection::Public, true);
    let [open, other] = ["open", "other"].map(|name| client.lookup(&client.root, name).unwrap());
    client.read(&open, 0, 1).unwrap();
    daemon.fail(true);
    table.refresh();
    client.read(&open, 0, 1).unwrap();
    assert_eq!(client.read(&other, 0, 1).err(), Some(nfsstat3::NFS3ERR_JUKEBOX), "the client tries again");
    daemon.fail(false);
    client.read(&other, 0, 1).unwrap();
}

#[test]
fn an_export_has_the_public_regions_or_those_that_it_names() {
    let daemon = Daemon::default();
    for (name, is_public) in [("a", true), ("secret", false), ("with/slash", true), ("..", true), ("b", true)]
    {
        daemon.register(name, 100, BOTH, is_public);
    }
    let table = table(&daemon);
    let all = mounted(&table, Selection::Public, true);
    assert_eq!(files(&all), ["a", "b"]);
    assert_eq!(all.lookup(&all.root, "secret").err(), Some(nfsstat3::NFS3ERR_NOENT));
    let named = ["secret", "b", "later"].map(str::to_owned).into_iter().collect();
    let named = mounted(&table, Selection::Named(named), true);
    assert_eq!(files(&named), ["b", "secret"]);
    let secret = named.lookup(&named.root, "secret").unwrap();
    assert_eq!(all.read(&secret, 0, 1).err(), Some(nfsstat3::NFS3ERR_STALE), "a handle of another export");
    daemon.register("later", 100, BOTH, false);
    table.refresh();
    assert_eq!(files(&named), ["b", "later", "secret"]);
}

#[test]
fn handles_and_numbers_stay_over_a_restart() {
    let daemon = Daemon::default();
    daemon.register("a", 100, BOTH, true);
    daemon.register("b", 100, BOTH, true);
    let mut client = mounted(&table(&daemon), Selection::Public, true);
    let handle = client.lookup(&client.root, "a").unwrap();
    let before = (names(&client), client.attributes(&handle).unwrap());
    client.server = server(&table(&daemon), Selection::Public, true, 2);
    let after = (names(&client), client.attributes(&handle).unwrap());
    assert_eq!(before.0, after.0);
    assert_eq!((before.1.fileid, before.1.fsid), (after.1.fileid, after.1.fsid));
    let mut numbers: Vec<_> =
        after.0.iter().filter(|(name, _)| name != "..").map(|(_, fileid)| *fileid).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "each object has a number of its own");
}

#[test]
fn a_listing_in_parts_misses_nothing_while_regions_come_and_go() {
    let daemon = Daemon::default();
    for number in 0..50 {
        daemon.register(&format!("region-{number}"), 100, BOTH, true);
    }
    let table = table(&daemon);
    let client = mounted(&table, Selection::Public, true);
    let (mut cookie, mut seen, mut round) = (0, Vec::new(), 0);
    loop {
        let cookieverf = cookieverf3::default();
        let arguments = READDIR3args { dir: client.root.clone(), cookie, cookieverf, count: 400 };
        let listed: READDIR3res<'static> = client.call(Proc::NFSPROC3_READDIR, &arguments);
        let listed = status(listed).unwrap().reply;
        for entry in &listed.entries.0 {
            seen.push(String::from_utf8(entry.name.0.to_vec()).unwrap());
            cookie = entry.cookie;
        }
        if listed.eof {
            break;
        }
        // One that was listed goes, another one comes.
        round += 1;
        daemon.deregister(seen.iter().rev().find(|name| name.starts_with("region")).unwrap());
        daemon.register(&format!("late-{round}"), 100, BOTH, true);
        table.refresh();
    }
    assert!(round > 3, "the listing has parts");
    seen.retain(|name| name.starts_with("region"));
    seen.sort();
    let count = seen.len();
    seen.dedup();
    assert_eq!((seen.len(), count), (50, 50), "each of those that were there is listed once");
}

/// A WRITE whose data is in a chunk, at the end of the message.
fn chunked_write(client: &Client, file: &nfs_fh3, offset: u64, length: u32) -> (Vec<u8>, [Chunk; 1]) {
    let mut message = call_bytes(PROGRAM, 3, Proc::NFSPROC3_WRITE as u32, &client.user);
    let mut out = Writer::new();
    out.opaque(file.data.as_ref());
    out.u64(offset);
    [length, 0, length].into_iter().for_each(|word| out.u32(word));
    message.extend(out.into_bytes());
    let position = u32::try_from(message.len()).unwrap();
    (message, [Chunk { position, offset: 0, length }])
}

#[test]
fn data_goes_between_the_wire_and_the_region_without_a_copy() {
    let daemon = Daemon::default();
    let memory = daemon.register("lab", 8192, BOTH, true);
    daemon.register("read", 8192, Access::REMOTE_READ, true);
    let table = table(&daemon);
    let client = mounted(&table, Selection::Public, true);
    let file = client.lookup(&client.root, "lab").unwrap();
    let (message, chunks) = chunked_write(&client, &file, 4096, 4096);
    let reader = || Reader::with_chunks(&message, &chunks);
    let place = client
        .server
        .place(Peer::rdma(client.address), reader())
        .expect("nothing keeps it from being placed");
    // The transport reads it from the client.
    memory.all()[4096..].fill(7);
    let copy_out = &|_| panic!("the data is copied");
    let reply =
        client.server.call_placed(Peer::rdma(client.address), reader(), copy_out, Some(&place)).unwrap();
    assert_eq!(reply.stream[24..28], [0; 4], "NFS3_OK");
    // READ returns the memory itself.
    let mut message = call_bytes(PROGRAM, 3, Proc::NFSPROC3_READ as u32, &client.user);
    READ3args { file: file.clone(), offset: 4000, count: 8192 }.pack(&mut message).unwrap();
    let reply = client.server.call(Peer::rdma(client.address), Reader::new(&message), copy_out).unwrap();
    let [(_, payload @ Payload::Span(_))] = &reply.payloads[..] else { panic!("{reply:?}") };
    assert_eq!(*payload.bytes(), [vec![0; 96], vec![7; 4096]].concat());
    // Each of these is refused, or written in part: the data must not be placed.
    let read = client.lookup(&client.root, "read").unwrap();
    for (file, offset, length) in [(&file, 4097, 4096), (&file, 8192, 1), (&file, u64::MAX, 1), (&read, 0, 1)]
    {
        let (message, chunks) = chunked_write(&client, file, offset, length);
        let reader = Reader::with_chunks(&message, &chunks);
        assert!(client.server.place(Peer::rdma(client.address), reader).is_none(), "{offset}, {length}");
    }
    let reader_only = mounted(&table, Selection::Public, false);
    let (message, chunks) = chunked_write(&reader_only, &file, 0, 1);
    let reader = Reader::with_chunks(&message, &chunks);
    assert!(
        reader_only.server.place(Peer::rdma(client.address), reader).is_none(),
        "a client that may only read"
    );
    // The region goes after its data was placed: the client does not take that for written.
    let (message, chunks) = chunked_write(&client, &file, 0, 1);
    let reader = || Reader::with_chunks(&message, &chunks);
    let place = client.server.place(Peer::rdma(client.address), reader()).unwrap();
    daemon.change("lab", Access::REMOTE_READ);
    table.refresh();
    let reply =
        client.server.call_placed(Peer::rdma(client.address), reader(), copy_out, Some(&place)).unwrap();
    assert_eq!(reply.stream[24..28], (nfsstat3::NFS3ERR_ACCES as u32).to_be_bytes());
}
