//! COMPOUND of NFS version 4.1 over a directory: order of operations, files, repetition, restart. Needs root.

use crate::daemon;
use std::time::Duration;

use crate::client::{Client, KEY, TRANSFER_MAX, call_bytes, rule, server};
use crate::session::*;
use iwarp_nfsd::{Nfs4Op, Nfs4Proc, Selection, Server, Squash, StateLimits};
use iwarp_rpc::xdr::{Chunk, Reader, Writer};
use iwarp_server::Peer;

#[test]
fn a_compound_has_its_order() {
    let mut session = Session::ready(Client::new());
    let client = &session.client;
    for minor in [0, 2, 7] {
        assert_eq!(compound(client, minor, &[plain(Nfs4Op::PUTROOTFH)]), (10021, 0, vec![]));
    }
    assert_eq!(compound(client, 1, &[]).0, OK);
    assert_eq!(compound(client, 1, &[plain(Nfs4Op::PUTROOTFH)]).0, 10071, "NFS4ERR_OP_NOT_IN_SESSION");
    let destroy = op(Nfs4Op::DESTROY_CLIENTID, |out| out.u64(1));
    assert_eq!(compound(client, 1, &[destroy, plain(Nfs4Op::PUTROOTFH)]).0, 10081, "NFS4ERR_NOT_ONLY_OP");
    let sequence = session.sequence_op(false);
    assert_eq!(session.run(&[sequence]).0, 10064, "NFS4ERR_SEQUENCE_POS");
    assert_eq!(session.run(&[plain(7777_u32)]), (10044, [10044_u32, 10044].map(u32::to_be_bytes).concat()));
    assert_eq!(session.run(&[plain(Nfs4Op::GETFH)]).0, 10020, "NFS4ERR_NOFILEHANDLE");
    assert_eq!(session.run(&[plain(Nfs4Op::RESTOREFH)]).0, 10030, "NFS4ERR_RESTOREFH");
    assert_eq!(session.run(&[op(Nfs4Op::PUTFH, |out| out.u32(50))]).0, 10036, "NFS4ERR_BADXDR");
    assert_eq!(session.run(&[put_handle(b"forged")]).0, 10001, "NFS4ERR_BADHANDLE");
    assert_eq!(session.run(&vec![plain(Nfs4Op::PUTROOTFH); 16]).0, 10070, "NFS4ERR_TOO_MANY_OPS");
    assert_eq!(session.run(&[plain(Nfs4Op::PUTROOTFH)]).0, OK);
}

#[test]
fn exports_hang_in_a_tree() {
    let mut session = Session::ready(Client::new());
    std::fs::write(session.client.folder.path().join("file"), "12345").unwrap();
    let root = session.run(&[plain(Nfs4Op::PUTROOTFH), plain(Nfs4Op::GETFH)]).1;
    let (status, results) =
        session.on_root(&[plain(Nfs4Op::GETFH), plain(Nfs4Op::LOOKUPP), plain(Nfs4Op::GETFH)]);
    assert_eq!(status, OK);
    assert!(results.ends_with(&root[8..]), "LOOKUPP leads from the export to the tree");
    let export = session.client.root.data.as_ref().to_vec();
    assert_eq!(Reader::new(&results[8..]).opaque(64), Ok(&export[..]), "the handle is that of MOUNT");
    assert_eq!(session.run(&[plain(Nfs4Op::PUTROOTFH), plain(Nfs4Op::LOOKUPP)]).0, 2, "NFS4ERR_NOENT");
    assert_eq!(session.run(&[plain(Nfs4Op::PUTROOTFH), named(Nfs4Op::LOOKUP, "other")]).0, 2);
    assert_eq!(session.run(&[plain(Nfs4Op::PUTROOTFH), named(Nfs4Op::REMOVE, "data")]).0, 30, "NFS4ERR_ROFS");
    let (status, results) = session.on_root(&[named(Nfs4Op::LOOKUP, "file"), type_and_size()]);
    assert_eq!(status, OK);
    assert_eq!(results[24..], [12_u32, 1, 0, 5].map(u32::to_be_bytes).concat(), "a regular file of 5 bytes");
    // Another client has no rule: it sees no export.
    session.client.address = "10.0.0.2".parse().unwrap();
    let closed = Client::with(vec![rule("10.0.0.1/32", true, Squash::None)]);
    let mut session = Session::ready(closed);
    assert_eq!(session.on_root(&[]).0, OK);
    session.client.address = "10.0.0.2".parse().unwrap();
    assert_eq!(session.on_root(&[]).0, 2);
    assert_eq!(session.run(&[put_handle(session.client.root.data.as_ref())]).0, 13, "NFS4ERR_ACCESS");
}

#[test]
fn data_written_is_read_back_at_any_size() {
    let mut session = Session::ready(Client::new());
    let (id, handle) = session.open("file", 2).unwrap();
    assert_eq!(session.open("file", 2).err(), Some(17), "GUARDED finds it existing");
    for size in [0, 1, 3, 4096, TRANSFER_MAX as usize] {
        let data: Vec<u8> = (0..size).map(|at| (at % 251).to_le_bytes()[0]).collect();
        let write = op(Nfs4Op::WRITE, |out| {
            stateid(out, id);
            out.u64(7);
            out.u32(2);
            out.opaque(&data);
        });
        let (status, results) = session.run(&[put_handle(&handle), write, type_and_size()]);
        assert_eq!(status, OK);
        let written =
            [Nfs4Op::WRITE.into(), OK, u32::try_from(size).unwrap(), 2].map(u32::to_be_bytes).concat();
        assert!(results[8..].starts_with(&written));
        let read = op(Nfs4Op::READ, |out| {
            stateid(out, id);
            out.u64(7);
            out.u32(TRANSFER_MAX);
        });
        // GETATTR follows the payload.
        let (status, results) = session.run(&[put_handle(&handle), read, type_and_size()]);
        assert_eq!(status, OK);
        let mut reader = Reader::new(&results[8..]);
        assert_eq!(
            [reader.u32(), reader.u32(), reader.u32()],
            [Ok(Nfs4Op::READ.into()), Ok(OK), Ok(1)],
            "{size} bytes"
        );
        assert_eq!(reader.opaque(TRANSFER_MAX as usize), Ok(&data[..]));
        assert_eq!([reader.u32(), reader.u32()], [Ok(Nfs4Op::GETATTR.into()), Ok(OK)]);
    }
    let close = || {
        op(Nfs4Op::CLOSE, |out| {
            out.u32(0);
            stateid(out, id);
        })
    };
    assert_eq!(session.run(&[put_handle(&handle), close()]).0, OK);
    assert_eq!(session.run(&[put_handle(&handle), close()]).0, 10025, "NFS4ERR_BAD_STATEID");
    let denied = open("owner", "file", 0, 3);
    assert_eq!(session.on_root(&[denied]).0, OK);
    assert_eq!(session.on_root(&[open("another", "file", 0, 0)]).0, 10015, "NFS4ERR_SHARE_DENIED");
}

#[test]
fn a_repeated_call_is_executed_once() {
    let mut session = Session::ready(Client::new());
    session.open("file", 1).unwrap();
    session.sequence += 1;
    let remove = [plain(Nfs4Op::PUTROOTFH), named(Nfs4Op::LOOKUP, "data"), named(Nfs4Op::REMOVE, "file")];
    let first = session.again(&remove);
    assert_eq!(first.0, OK);
    for _ in 0..3 {
        assert_eq!(session.again(&remove), first);
    }
    session.sequence += 1;
    assert_eq!(session.again(&remove).0, 2, "a new call finds the file removed");
}

#[test]
fn an_open_file_outlives_its_name() {
    let mut session = Session::ready(Client::new());
    let (id, handle) = session.open("file", 1).unwrap();
    std::fs::write(session.client.folder.path().join("file"), "kept").unwrap();
    assert_eq!(session.on_root(&[named(Nfs4Op::REMOVE, "file")]).0, OK);
    let read = op(Nfs4Op::READ, |out| {
        stateid(out, id);
        out.u64(0);
        out.u32(100);
    });
    let (status, results) = session.run(&[put_handle(&handle), read]);
    assert_eq!(status, OK);
    assert_eq!(Reader::new(&results[20..]).opaque(100), Ok(&b"kept"[..]));
}

#[test]
fn recorded_clients_reclaim_their_opens_after_a_restart() {
    let limits = StateLimits { lease: Duration::from_secs(60), ..StateLimits::default() };
    let directory = tempfile::TempDir::new().unwrap();
    let record = directory.path().join("clients");
    let start = |client: &Client, verifier| -> Server {
        let rules = vec![rule("0.0.0.0/0", true, Squash::None)];
        server(client.folder.path(), KEY, verifier, rules).with_state(limits, &record).unwrap()
    };
    let mut client = Client::new();
    client.server = start(&client, 5);
    let mut session = Session::ready(client);
    let (_, handle) = session.open("file", 1).unwrap();
    session.client.server = start(&session.client, 6);
    assert_eq!(session.run(&[plain(Nfs4Op::PUTROOTFH)]).0, 10052, "NFS4ERR_BADSESSION");
    let mut session = Session::new(session.client, "client");
    assert_eq!(session.open("file", 0).err(), Some(10013), "NFS4ERR_GRACE");
    let reclaim = || {
        op(Nfs4Op::OPEN, |out| {
            [0, 3, 0].into_iter().for_each(|word| out.u32(word));
            out.u64(0);
            out.opaque(b"owner");
            [0, 1, 0].into_iter().for_each(|word| out.u32(word));
        })
    };
    assert_eq!(session.run(&[put_handle(&handle), reclaim()]).0, OK);
    assert_eq!(session.run(&[op(Nfs4Op::RECLAIM_COMPLETE, |out| out.bool(false))]).0, OK);
    assert_eq!(session.run(&[put_handle(&handle), reclaim()]).0, 10033, "NFS4ERR_NO_GRACE");
    assert!(session.open("file", 0).is_ok(), "no other client has to come back");
}

#[test]
fn a_file_is_opened_with_the_rights_of_the_user() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let mut session = Session::ready(Client::new());
    let path = session.client.folder.path().join("file");
    std::fs::set_permissions(session.client.folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(&path, "x").unwrap();
    chown(&path, Some(1000), Some(100)).unwrap();
    for (mode, user, allowed) in [
        (0o600, (1000, vec![7]), true),
        (0o600, (1001, vec![100]), false),
        (0o660, (1001, vec![7, 100]), true),
        (0o640, (1001, vec![100]), false),
        (0o606, (1001, vec![7]), true),
        (0o400, (1000, vec![7]), false),
        (0o000, (0, vec![0]), true),
    ] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        session.client.user = user.clone();
        let opened = session.on_root(&[open("owner", "file", 0, 0)]).0;
        assert_eq!(opened, if allowed { OK } else { 13 }, "mode {mode:o}, user {user:?}");
    }
    // A user who makes a file may write to it, whatever its mode says.
    session.client.user = (1001, vec![7]);
    assert!(session.open("made", 2).is_ok());
    let found = std::fs::metadata(session.client.folder.path().join("made")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&found), 1001);
}

/// GETATTR of the times of access and modification. Returns seconds and nanoseconds of both.
fn times(session: &mut Session, handle: &[u8]) -> [(i64, u32); 2] {
    let get = op(Nfs4Op::GETATTR, |out| [2, 0, 1 << 15 | 1 << 21].into_iter().for_each(|word| out.u32(word)));
    let (status, results) = session.run(&[put_handle(handle), get]);
    assert_eq!(status, OK);
    let mut reader = Reader::new(&results[8 + 8 + 12..]);
    assert_eq!(reader.u32(), Ok(24));
    [(); 2].map(|()| (reader.u64().unwrap().cast_signed(), reader.u32().unwrap()))
}

#[test]
fn times_have_64_bits() {
    use std::os::unix::fs::MetadataExt;
    let mut session = Session::ready(Client::new());
    let (id, handle) = session.open("file", 2).unwrap();
    let root = session.client.root.clone();
    let file = session.client.lookup(&root, "file").unwrap();
    let last = (u32::MAX, 999_999_999);
    // NFS 3 states the nearest time that its 32 bits can hold (RFC 1813 §2.5).
    for (seconds, nanoseconds, by_3) in [
        (1_i64 << 31, 7, (1 << 31, 7)),
        ((1 << 32) - 1, 1, (u32::MAX, 1)),
        (1 << 32, 999_999_999, last),
        ((1 << 33) + 5, 0, last),
        (-1, 999_999_999, (0, 0)),
        (-1_000_000_000, 1, (0, 0)),
    ] {
        let set = op(Nfs4Op::SETATTR, |out| {
            stateid(out, id);
            // Times of access and modification of the client.
            [2, 0, 1 << 16 | 1 << 22, 32].into_iter().for_each(|word| out.u32(word));
            for shift in 0..2 {
                out.u32(1);
                out.u64((seconds + shift).cast_unsigned());
                out.u32(nanoseconds);
            }
        });
        assert_eq!(session.run(&[put_handle(&handle), set]).0, OK, "{seconds}");
        let found = times(&mut session, &handle);
        assert_eq!(found, [(seconds, nanoseconds), (seconds + 1, nanoseconds)]);
        let there = std::fs::metadata(session.client.folder.path().join("file")).unwrap();
        assert_eq!((there.atime(), there.atime_nsec()), (seconds, nanoseconds.into()), "the file system's");
        let atime = session.client.attributes(&file).unwrap().atime;
        assert_eq!((atime.seconds, atime.nseconds), by_3, "{seconds} by NFS 3");
    }
}

#[test]
fn a_call_that_is_cut_off_does_nothing() {
    let mut session = Session::ready(Client::new());
    session.sequence += 1;
    let whole = |session: &Session| {
        let file = open("owner", "file", 2, 0);
        [session.sequence_op(true), plain(Nfs4Op::PUTROOTFH), named(Nfs4Op::LOOKUP, "data"), file].concat()
    };
    for length in (0..whole(&session).len()).step_by(4) {
        let mut message = call_bytes(100_003, 4, Nfs4Proc::COMPOUND, &session.client.user);
        message.extend([3_u32, 0x7461_6700, 1, 4].map(u32::to_be_bytes).concat());
        message.extend(&whole(&session)[..length]);
        let reply = session.client.exchange(&message);
        let results = Reader::new(&reply[36..]).u32().unwrap();
        assert!(!session.client.folder.path().join("file").exists(), "{length} bytes");
        // A whole SEQUENCE takes the slot; what follows it fails.
        let sequenced = length >= 36;
        assert_eq!(results, if length < 40 { 1 + u32::from(sequenced) } else { results }, "{length} bytes");
        session.sequence += u32::from(sequenced);
    }
    assert_eq!(session.again(&[plain(Nfs4Op::PUTROOTFH)]).0, OK);
}

/// A client with a session that has mounted a region of 8192 bytes.
fn on_region() -> (Session, daemon::Daemon, std::sync::Arc<daemon::Bytes>) {
    let daemon = daemon::Daemon::default();
    let memory = daemon.register("lab", 8192, daemon::BOTH, true);
    let client = daemon::client(&daemon::table(&daemon), Selection::Public, true);
    (Session::ready(client), daemon, memory)
}

fn write_op(id: Id, offset: u64, data: &[u8]) -> Vec<u8> {
    op(Nfs4Op::WRITE, |out| {
        stateid(out, id);
        out.u64(offset);
        out.u32(0);
        out.opaque(data);
    })
}

fn read_op(id: Id, offset: u64, length: u32) -> Vec<u8> {
    op(Nfs4Op::READ, |out| {
        stateid(out, id);
        out.u64(offset);
        out.u32(length);
    })
}

#[test]
fn a_region_is_opened_locked_read_and_written() {
    let (mut session, _, memory) = on_region();
    let (id, handle) = session.open("lab", 0).unwrap();
    let (status, results) =
        session.run(&[put_handle(&handle), write_op(id, 8000, b"by a client"), type_and_size()]);
    assert_eq!(status, OK);
    let written = [Nfs4Op::WRITE.into(), OK, 11, 2].map(u32::to_be_bytes).concat();
    assert!(results[8..].starts_with(&written), "written, and nothing is left to commit");
    assert_eq!(memory.all()[8000..8011], *b"by a client");
    let lock = op(Nfs4Op::LOCK, |out| {
        [2, 0].into_iter().for_each(|word| out.u32(word));
        [0, 100].into_iter().for_each(|word| out.u64(word));
        [1, 0].into_iter().for_each(|word| out.u32(word));
        stateid(out, id);
        out.u32(0);
        out.u64(1);
        out.opaque(b"locker");
    });
    assert_eq!(session.run(&[put_handle(&handle), lock]).0, OK);
    // Two payloads of one reply, one cut at the end of the region.
    let reads = [read_op(id, 8000, 8), read_op(id, 8190, 8)];
    let (status, results) = session.run(&[&[put_handle(&handle)], &reads[..]].concat());
    assert_eq!(status, OK);
    let first = [&[Nfs4Op::READ.into(), OK, 0, 8].map(u32::to_be_bytes).concat()[..], b"by a cli"].concat();
    let second = [&[Nfs4Op::READ.into(), OK, 1, 2].map(u32::to_be_bytes).concat()[..], &[0; 4]].concat();
    assert_eq!(results[8..], [first, second].concat());
    assert_eq!(session.run(&[put_handle(&handle), write_op(id, 8192, b"x")]).0, 28, "NFS4ERR_NOSPC");
    assert_eq!(
        session
            .run(&[
                put_handle(&handle),
                op(Nfs4Op::COMMIT, |out| [0, 0, 0].into_iter().for_each(|word| out.u32(word)))
            ])
            .0,
        OK
    );
    assert_eq!(session.open("new", 1).err(), Some(13), "NFS4ERR_ACCESS");
    assert_eq!(session.on_root(&[named(Nfs4Op::REMOVE, "lab")]).0, 13);
}

/// RFC 8881 §2.3: the operations of a COMPOUND "are evaluated in order by the server".
#[test]
fn a_read_before_a_write_of_one_call_returns_the_bytes_before_it() {
    let (mut session, _, memory) = on_region();
    let (id, handle) = session.open("lab", 0).unwrap();
    memory.all().fill(1);
    let operations = [read_op(id, 0, 100), write_op(id, 0, &[2; 100]), read_op(id, 0, 4)];
    let (status, results) = session.run(&[&[put_handle(&handle)], &operations[..]].concat());
    assert_eq!(status, OK);
    let mut reader = Reader::new(&results[8..]);
    reader.array::<12>().unwrap();
    assert_eq!(reader.opaque(100), Ok(&[1; 100][..]));
    assert!(results.ends_with(&[2; 4]));
    assert_eq!(memory.all()[..100], [2; 100]);
}

#[test]
fn a_repeated_reply_has_the_bytes_of_the_first() {
    let (mut session, _, memory) = on_region();
    let (id, handle) = session.open("lab", 0).unwrap();
    memory.all().fill(1);
    session.sequence += 1;
    let operations = [put_handle(&handle), read_op(id, 0, 100)];
    let first = session.again(&operations);
    memory.all().fill(2);
    assert_eq!(session.again(&operations), first, "executed once");
    assert!(first.2.ends_with(&[1; 100]));
}

#[test]
fn a_region_that_goes_is_stale_for_those_who_have_it_open() {
    let daemon = daemon::Daemon::default();
    let memory = daemon.register("lab", 8192, daemon::BOTH, true);
    let table = daemon::table(&daemon);
    let mut session = Session::ready(daemon::client(&table, Selection::Public, true));
    let (id, handle) = session.open("lab", 0).unwrap();
    daemon.deregister("lab");
    table.refresh();
    assert_eq!(session.run(&[put_handle(&handle), read_op(id, 0, 1)]).0, 70, "NFS4ERR_STALE");
    assert_eq!(session.run(&[put_handle(&handle), write_op(id, 0, b"x")]).0, 70);
    assert_eq!(std::sync::Arc::strong_count(&memory), 1, "the open does not keep its memory");
    assert_eq!(
        session
            .run(&[
                put_handle(&handle),
                op(Nfs4Op::CLOSE, |out| {
                    out.u32(0);
                    stateid(out, id)
                })
            ])
            .0,
        OK
    );
}

#[test]
fn an_open_that_cannot_truncate_leaves_no_share() {
    let (mut session, ..) = on_region();
    let truncating = op(Nfs4Op::OPEN, |out| {
        [0, 3, 3].into_iter().for_each(|word| out.u32(word));
        out.u64(0);
        out.opaque(b"owner");
        // UNCHECKED, with a size of 0.
        [1, 0, 1, 1 << 4, 8].into_iter().for_each(|word| out.u32(word));
        out.u64(0);
        out.u32(0);
        out.opaque(b"lab");
    });
    assert_eq!(session.on_root(&[truncating]).0, 1, "NFS4ERR_PERM");
    let other = open("other", "lab", 0, 0);
    assert_eq!(session.on_root(&[other]).0, OK, "nobody has denied it");
}

#[test]
fn data_is_placed_only_for_a_new_call_of_an_open() {
    let (mut session, _, memory) = on_region();
    let (id, handle) = session.open("lab", 0).unwrap();
    let message = |session: &Session, id: Id| {
        let write = op(Nfs4Op::WRITE, |out| {
            stateid(out, id);
            out.u64(100);
            [2, 4096].into_iter().for_each(|word| out.u32(word));
        });
        let mut message = call_bytes(100_003, 4, Nfs4Proc::COMPOUND, &session.client.user);
        let mut out = Writer::new();
        out.opaque(b"tag");
        [1, 3].into_iter().for_each(|word| out.u32(word));
        message.extend(out.into_bytes());
        message.extend([session.sequence_op(true), put_handle(&handle), write].concat());
        let chunk = Chunk { position: u32::try_from(message.len()).unwrap(), offset: 0, length: 4096 };
        (message, [chunk])
    };
    session.sequence += 1;
    let (unknown, chunks) = message(&session, (1, [9; 12]));
    let peer = Peer::rdma(session.client.address);
    let place = |session: &Session, message: &[u8], chunks: &[Chunk; 1]| {
        session.client.server.place(peer, Reader::with_chunks(message, chunks))
    };
    assert!(place(&session, &unknown, &chunks).is_none(), "no such open");
    let (new, chunks) = message(&session, id);
    let span = place(&session, &new, &chunks).expect("a new call");
    memory.all()[100..4196].fill(5);
    let call = |span| {
        let reader = Reader::with_chunks(&new, &chunks);
        let reply = session.client.server.call_placed(peer, reader, &|_| panic!("the data is copied"), span);
        reply.unwrap().stream
    };
    let reply = call(Some(&span));
    let written = [Nfs4Op::WRITE.into(), OK, 4096, 2].map(u32::to_be_bytes).concat();
    assert!(reply.windows(16).any(|bytes| bytes == written));
    // A peer writes. The client repeats its call, whose reply was lost: that must not write again.
    memory.all()[100] = 6;
    assert!(place(&session, &new, &chunks).is_none());
    assert_eq!(call(None), reply);
    assert_eq!(memory.all()[100], 6);
}

#[test]
fn the_largest_file_ends_at_the_largest_offset() {
    const LARGEST: u64 = i64::MAX as u64;
    let client = Client::in_memory();
    std::fs::File::create(client.folder.path().join("large")).unwrap().set_len(LARGEST).unwrap();
    let mut session = Session::ready(client);
    let (id, handle) = session.open("large", 0).unwrap();
    for (offset, length, expected) in
        [(LARGEST - 4095, 4096, 4095), (LARGEST, 4096, 0), (LARGEST + 1, 4096, 0), (u64::MAX, 4096, 0_u32)]
    {
        let (status, results) = session.run(&[put_handle(&handle), read_op(id, offset, length)]);
        let read = [Nfs4Op::READ.into(), OK, 1, expected].map(u32::to_be_bytes).concat();
        assert_eq!(status, OK, "READ of {length} at {offset}");
        assert!(
            results[8..].starts_with(&read) && results.len() == 24 + expected.next_multiple_of(4) as usize
        );
    }
    assert_eq!(session.run(&[put_handle(&handle), write_op(id, LARGEST - 1, b"x")]).0, OK);
    for (offset, data) in [(LARGEST - 1, &b"xy"[..]), (LARGEST + 1, b"x"), (u64::MAX, b"x")] {
        let written = session.run(&[put_handle(&handle), write_op(id, offset, data)]);
        assert_eq!(written.0, 27, "NFS4ERR_FBIG at {offset}");
    }
    let set_size = op(Nfs4Op::SETATTR, |out| {
        stateid(out, id);
        [1, 1 << 4, 8].into_iter().for_each(|word| out.u32(word));
        out.u64(LARGEST + 1);
    });
    assert_eq!(session.run(&[put_handle(&handle), set_size]).0, 27, "NFS4ERR_FBIG");
}

#[test]
fn unknown_flags_of_a_session_are_refused() {
    const INVAL: u32 = 22;
    let client = Client::new();
    let (_, _, results) = compound(&client, 1, &[exchange_id("flags")]);
    let id = Reader::new(&results[8..]).u64().unwrap();
    for flags in [8, 1 << 31, u32::MAX] {
        assert_eq!(compound(&client, 1, &[create_session(id, 1, flags)]).0, INVAL, "{flags:#x}");
    }
    // The refused calls have used no sequence.
    let (status, _, results) = compound(&client, 1, &[create_session(id, 1, 7)]);
    assert_eq!(status, OK);
    let session: [u8; 16] = Reader::new(&results[8..]).array().unwrap();
    let bind = |direction| {
        op(Nfs4Op::BIND_CONN_TO_SESSION, |out| {
            out.fixed(&session);
            [direction, 0].into_iter().for_each(|word| out.u32(word));
        })
    };
    for direction in 0..9 {
        let expected = if [1, 3, 7].contains(&direction) { OK } else { INVAL };
        assert_eq!(compound(&client, 1, &[bind(direction)]).0, expected, "direction {direction}");
    }
}

#[test]
fn clients_that_are_never_confirmed_keep_nobody_out() {
    let mut client = Client::new();
    for number in 0..300 {
        let (status, ..) = compound(&client, 1, &[exchange_id(&format!("silent {number}"))]);
        assert_eq!(status, OK, "EXCHANGE_ID {number}");
    }
    client.address = "10.0.0.2".parse().unwrap();
    let mut honest = Session::ready(client);
    honest.open("file", 1).unwrap();
}
