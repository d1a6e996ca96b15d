//! Exports: who mounts what, and that nobody gets more than that. Needs root.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::client::{Client, KEY, call_bytes, mode, rule, server};
use iwarp_nfsd::{Directory, Export, ExportError, MountProc, Nfs3Proc, Nfs4Proc, Server, Squash};
use iwarp_rpc::xdr::Reader;
use iwarp_server::Peer;
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Opaque;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn the_longest_prefix_decides() {
    let rules = vec![
        rule("10.0.0.0/8", true, Squash::None),
        rule("10.0.0.4/32", false, Squash::None),
        rule("fd00::/16", false, Squash::Root),
    ];
    let mut client = Client::with(rules);
    for (address, expected) in [
        ("10.0.0.1", Ok(true)),
        ("::ffff:10.0.0.1", Ok(true)),
        ("10.0.0.4", Ok(false)),
        ("fd00::1", Ok(false)),
        ("11.0.0.1", Err(13)),
        ("fd01::1", Err(13)),
    ] {
        client.address = address.parse::<IpAddr>().unwrap();
        assert_eq!(client.mount("/data").map(|_| ()), expected.map(|_| ()), "{address}");
        let made = client.mkdir(&client.root, &address.replace(':', "-"));
        let expected = match expected {
            Ok(true) => None,
            Ok(false) => Some(nfsstat3::NFS3ERR_ROFS),
            Err(_) => Some(nfsstat3::NFS3ERR_ACCES),
        };
        assert_eq!(made.err(), expected, "{address}");
    }
}

#[test]
fn mounts_are_listed_until_they_end() {
    let client = Client::new();
    assert_eq!(client.mount("/data/"), Ok(client.root.clone()), "a slash at the end means nothing");
    client.mkdir(&client.root, "dir").unwrap();
    assert_eq!(client.mount("/data/dir"), client.lookup(&client.root, "dir").map_err(|status| status as u32));
    assert_eq!((client.mount("/"), client.mount("/data/x"), client.mount("data")), (Err(2), Err(2), Err(2)));
    let list = |procedure: MountProc| client.raw(100_005, procedure, &[]);
    let text = |procedure| String::from_utf8_lossy(&list(procedure)).into_owned();
    assert!(text(MountProc::EXPORT).contains("/data") && text(MountProc::EXPORT).contains("0.0.0.0/0"));
    assert!(text(MountProc::DUMP).contains("10.0.0.1") && text(MountProc::DUMP).contains("/data/dir"));
    assert_eq!(list(MountProc::DUMP).len(), 28 + 32 + 4, "{}", text(MountProc::DUMP));
    assert_eq!(
        client.raw(100_005, MountProc::UMNT, &[0, 0, 0, 5, b'/', b'd', b'a', b't', b'a', 0, 0, 0]),
        [0_u8; 0]
    );
    assert!(text(MountProc::DUMP).contains("/data/dir"), "the other mount stays");
    for number in 0..1100 {
        client.mkdir(&client.root, &format!("{number}")).unwrap();
        client.mount(&format!("/data/{number}")).unwrap();
    }
    assert!(list(MountProc::DUMP).len() < 1100 * 40, "{} bytes", list(MountProc::DUMP).len());
    list(MountProc::UMNTALL);
    assert_eq!(list(MountProc::DUMP), [0; 4]);
    assert_eq!(list(MountProc::NULL), [0_u8; 0]);
}

#[test]
fn handles_stay_valid_over_a_restart_and_cannot_be_forged() {
    let mut client = Client::new();
    let file = client.create(&client.root, "file", createhow3::UNCHECKED(mode(0o600))).unwrap();
    client.write(&file, 0, b"kept", stable_how::FILE_SYNC).unwrap();
    fs::rename(client.folder.path().join("file"), client.folder.path().join("renamed")).unwrap();
    let rules = || vec![rule("0.0.0.0/0", true, Squash::None)];
    client.server = server(client.folder.path(), KEY, 2, rules());
    assert_eq!(client.read(&file, 0, 9).unwrap(), (b"kept".to_vec(), true));
    let written = client.write(&file, 0, b"K", stable_how::UNSTABLE).unwrap();
    assert_eq!(written.verf.0[7], 2, "the verifier says that there was a restart");
    for at in 0..file.data.len() {
        let mut bytes = file.data.to_vec();
        bytes[at] ^= 1;
        let forged = nfs_fh3 { data: Opaque::owned(bytes) };
        assert_eq!(client.attributes(&forged).err(), Some(nfsstat3::NFS3ERR_BADHANDLE), "byte {at}");
    }
    fs::remove_file(client.folder.path().join("renamed")).unwrap();
    assert_eq!(client.attributes(&file).err(), Some(nfsstat3::NFS3ERR_STALE));
    client.server = server(client.folder.path(), [0; 16], 2, rules());
    assert_eq!(client.attributes(&client.root).err(), Some(nfsstat3::NFS3ERR_BADHANDLE));
}

#[test]
fn nothing_above_or_beside_the_export_can_be_reached() {
    let client = Client::new();
    let outside = tempfile::TempDir::new().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let root = &client.root;
    assert_eq!(client.lookup(root, "..").unwrap(), *root);
    assert_eq!(client.lookup(root, ".").unwrap(), *root);
    symlink(outside.path(), client.folder.path().join("link")).unwrap();
    let link = client.lookup(root, "link").unwrap();
    assert_eq!(client.attributes(&link).unwrap().type_, ftype3::NF3LNK);
    assert_eq!(client.lookup(&link, "secret").err(), Some(nfsstat3::NFS3ERR_NOTDIR));
    let path = format!("../{}/secret", outside.path().file_name().unwrap().to_str().unwrap());
    for name in [path.as_str(), "link/secret", "/etc/passwd", "a\0b", "", "../..", "./link"] {
        for result in [
            client.lookup(root, name).err(),
            client.mkdir(root, name).err(),
            client.create(root, name, createhow3::UNCHECKED(mode(0o600))).err(),
            client.remove(root, name).err(),
        ] {
            assert_eq!(result, Some(nfsstat3::NFS3ERR_INVAL), "{name:?}");
        }
    }
    let long = "n".repeat(256);
    assert_eq!(client.mkdir(root, &long).err(), Some(nfsstat3::NFS3ERR_NAMETOOLONG));
    // A directory that is moved away keeps its handle, but leads no further.
    let dir = client.mkdir(root, "dir").unwrap();
    let inner = client.mkdir(&dir, "inner").unwrap();
    assert_eq!(client.lookup(&inner, "..").unwrap(), dir);
    fs::rename(client.folder.path().join("dir"), outside.path().join("dir")).unwrap();
    assert_eq!(client.lookup(&dir, "..").err(), Some(nfsstat3::NFS3ERR_STALE));
    assert_eq!(client.lookup(&inner, "..").err(), Some(nfsstat3::NFS3ERR_STALE));
}

#[test]
fn root_is_squashed_and_users_are_kept_apart() {
    let mut client = Client::with(vec![rule("0.0.0.0/0", true, Squash::Root)]);
    let path = client.folder.path().to_path_buf();
    let touch =
        |client: &Client, name: &str| client.create(&client.root, name, createhow3::UNCHECKED(mode(0o600)));
    assert_eq!(touch(&client, "a").err(), Some(nfsstat3::NFS3ERR_ACCES), "root is nobody special");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).unwrap();
    for (uid, owner) in [(0, 65534), (1000, 1000), (1001, 1001)] {
        client.user = (uid, vec![uid]);
        let name = format!("of {uid}");
        touch(&client, &name).unwrap();
        let found = fs::metadata(path.join(&name)).unwrap();
        assert_eq!((found.uid(), found.gid()), (owner, owner));
    }
    client.user = (1000, vec![1000]);
    let (own, others) =
        (client.lookup(&client.root, "of 1000").unwrap(), client.lookup(&client.root, "of 1001").unwrap());
    for forbidden in [
        client.read(&others, 0, 1).err(),
        client.write(&others, 0, b"x", stable_how::UNSTABLE).err(),
        client
            .set(&others, sattr3 { size: Nfs3Option::Some(0), ..sattr3::default() }, Nfs3Option::None)
            .err(),
    ] {
        assert_eq!(forbidden, Some(nfsstat3::NFS3ERR_ACCES));
    }
    for forbidden in [
        client.set(&others, mode(0o777), Nfs3Option::None).err(),
        client.set(&own, sattr3 { uid: Nfs3Option::Some(0), ..sattr3::default() }, Nfs3Option::None).err(),
        client.remove(&client.root, "of 1001").err(),
    ] {
        assert_eq!(forbidden, Some(nfsstat3::NFS3ERR_PERM));
    }
    // The client checks the mode when a program opens a file; the owner's transfers are not checked again.
    client.set(&own, mode(0o400), Nfs3Option::None).unwrap();
    client.write(&own, 0, b"mine", stable_how::UNSTABLE).unwrap();
    // Another user's write takes the set-user-ID bit away.
    client.set(&own, mode(0o4777), Nfs3Option::None).unwrap();
    client.user = (1001, vec![1001]);
    client.write(&own, 0, b"theirs", stable_how::UNSTABLE).unwrap();
    assert_eq!(client.attributes(&own).unwrap().mode, 0o777);
}

#[test]
fn exports_are_checked_at_the_start() {
    let folder = tempfile::TempDir::new().unwrap();
    let export = |path: &str| Export {
        path: path.to_owned(),
        backend: Box::new(Directory::open(folder.path()).unwrap()),
        rules: Vec::new(),
        insecure: false,
    };
    let error = |paths: &[&str]| {
        let exports = paths.iter().map(|path| export(path)).collect();
        Server::new(exports, KEY, 1, 4096).err()
    };
    assert_eq!(error(&["/a", "/b"]), None);
    assert_eq!(error(&["/a", "/a"]), Some(ExportError::Duplicate("/a".to_owned())));
    assert_eq!(error(&["a"]), Some(ExportError::Path("a".to_owned())));
    assert!(Directory::open(&folder.path().join("none")).is_err());
    assert!(ExportError::Duplicate("/a".to_owned()).to_string().contains("choose a different one"));
}

#[test]
fn calls_that_are_not_served_say_why() {
    let client = Client::new();
    let reply = |program, version, procedure: u32| {
        words(&client.exchange(&call_bytes(program, version, procedure, &client.user)))[5..].to_vec()
    };
    assert_eq!(reply(100_227, 3, 0), [1], "NFSACL");
    assert_eq!(
        (reply(100_003, 5, Nfs3Proc::NULL.into()), reply(100_005, 1, MountProc::MNT.into())),
        (vec![2, 3, 4], vec![2, 3, 3])
    );
    assert_eq!((reply(100_003, 4, Nfs4Proc::NULL.into()), reply(100_003, 4, 2)), (vec![0], vec![3]));
    assert_eq!((reply(100_003, 3, 22), reply(100_005, 3, 6)), (vec![3], vec![3]));
    assert_eq!(
        (reply(100_003, 3, Nfs3Proc::GETATTR.into()), reply(100_005, 3, MountProc::MNT.into())),
        (vec![4], vec![4]),
        "no arguments"
    );
    let gss: Vec<u8> = [77, 0, 2, 100_003, 3, Nfs3Proc::GETATTR.into(), 6, 0, 0, 0]
        .into_iter()
        .flat_map(u32::to_be_bytes)
        .collect();
    assert_eq!(words(&client.exchange(&gss)), [77, 1, 1, 1, 5]);
    assert!(client.server.call(Peer::rdma(client.address), Reader::new(&[0; 3]), &|_| Vec::new()).is_none());
}

/// Arguments that are cut off, lengthened or changed end in a result or a refusal, and change nothing outside.
#[test]
fn any_arguments_are_survived() {
    let client = Client::new();
    let sibling = tempfile::TempDir::new().unwrap();
    let handle = client.root.data.to_vec();
    let arguments =
        (any::<bool>(), prop::collection::vec(any::<u8>(), 0..200), prop::collection::vec(0..4_u32, 0..12));
    let cases = (prop::sample::select(vec![100_003_u32, 100_005]), 0..23_u32, arguments);
    let config = Config { cases: 4000, failure_persistence: None, ..Config::default() };
    let tested = TestRunner::new(config).run(&cases, |(program, procedure, (valid, bytes, small))| {
        let version = if program == 100_003 && procedure == 22 { 4 } else { 3 };
        let procedure = if version == 4 { Nfs4Proc::COMPOUND.into() } else { procedure };
        let mut message = call_bytes(program, version, procedure, &client.user);
        if valid {
            message.extend(u32::try_from(handle.len()).unwrap().to_be_bytes());
            message.extend(&handle);
        }
        message.extend(small.iter().flat_map(|word| word.to_be_bytes()));
        message.extend(&bytes);
        if let Some(reply) =
            client.server.call(Peer::rdma(client.address), Reader::new(&message), &|_| Vec::new())
        {
            prop_assert_eq!(&reply.stream[..4], &[0, 0, 0, 77]);
        }
        Ok(())
    });
    tested.unwrap();
    assert_eq!(fs::read_dir(sibling.path()).unwrap().count(), 0);
    assert!(client.attributes(&client.root).is_ok());
}

#[test]
fn a_reload_replaces_all_exports_or_none() {
    let client = Client::new();
    let rules = |write| vec![rule("0.0.0.0/0", write, Squash::None)];
    let export = |path: &str, write| {
        let backend = Box::new(Directory::open(client.folder.path()).unwrap());
        Export { path: path.to_owned(), backend, rules: rules(write), insecure: false }
    };
    // The handles of an export whose path stays are those of before; its rights are the new ones.
    client.server.reload(vec![export("/data", false), export("/more", true)]).unwrap();
    assert_eq!(client.mkdir(&client.root, "a").err(), Some(nfsstat3::NFS3ERR_ROFS));
    let more = client.mount("/more").unwrap();
    client.mkdir(&more, "a").unwrap();
    let twice = client.server.reload(vec![export("/data", true), export("/data", true)]);
    assert_eq!(twice, Err(ExportError::Duplicate("/data".to_owned())));
    client.mkdir(&more, "b").unwrap();
    assert_eq!(client.mkdir(&client.root, "c").err(), Some(nfsstat3::NFS3ERR_ROFS));
    client.server.reload(vec![export("/more", true)]).unwrap();
    assert_eq!(client.attributes(&client.root).err(), Some(nfsstat3::NFS3ERR_STALE));
    assert_eq!(client.mount("/data").err(), Some(2));
    client.mkdir(&more, "c").unwrap();
}

/// Statuses of MOUNT (RFC 1813 §5.1.5).
const NOENT: u32 = 2;
const ACCES: u32 = 13;
const NOTDIR: u32 = 20;

#[test]
fn directories_below_an_export_are_mounted() {
    let mut client = Client::new();
    let dir = client.mkdir(&client.root, "dir").unwrap();
    let inner = client.mkdir(&dir, "inner").unwrap();
    client.create(&dir, "file", createhow3::UNCHECKED(mode(0o644))).unwrap();
    for path in ["/data/dir", "//data//dir/", "/data/./dir/.", "/data/dir///"] {
        assert_eq!(client.mount(path), Ok(dir.clone()), "{path}");
    }
    assert_eq!(client.mount("/data/dir/inner"), Ok(inner.clone()));
    assert_eq!(
        (client.mount("//data"), client.mount("/data/.")),
        (Ok(client.root.clone()), Ok(client.root.clone()))
    );
    assert_eq!(
        (client.mount("/data/dir/file"), client.mount("/data/dir/file/x")),
        (Err(NOTDIR), Err(NOTDIR))
    );
    for path in ["/data/none", "/data/none/inner", "/dat", "/datadir", "/data2/dir", "", "data/dir"] {
        assert_eq!(client.mount(path), Err(NOENT), "{path}");
    }
    assert_eq!(client.mount(&format!("/data/{}", "n".repeat(256))), Err(63), "MNT3ERR_NAMETOOLONG");
    // Nothing above the export, and no link, wherever it leads.
    symlink("/etc", client.folder.path().join("out")).unwrap();
    symlink("dir", client.folder.path().join("within")).unwrap();
    for path in ["/data/out", "/data/within", "/data/within/inner", "/data/out/ssl"] {
        assert_eq!(client.mount(path), Err(NOTDIR), "{path}");
    }
    for path in
        ["/data/..", "/data/dir/..", "/data/dir/../dir", "/data/../etc", "/../data", "/data/dir/../../etc"]
    {
        assert_eq!(client.mount(path), Err(NOENT), "{path}");
    }
    // A directory that the user may not search hides what is in it, as for LOOKUP.
    fs::set_permissions(client.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(client.folder.path().join("dir"), fs::Permissions::from_mode(0o700)).unwrap();
    client.user = (1000, vec![1000]);
    assert_eq!((client.mount("/data/dir"), client.mount("/data/dir/inner")), (Ok(dir), Err(ACCES)));
    assert_eq!(client.mount("/data/dir/none"), Err(ACCES));
}

#[test]
fn the_longest_export_of_a_path_is_mounted() {
    let client = Client::new();
    let other = tempfile::TempDir::new().unwrap();
    fs::create_dir_all(client.folder.path().join("other/dir")).unwrap();
    fs::create_dir(other.path().join("dir")).unwrap();
    let export = |path: &str, folder: &std::path::Path, clients: &str| {
        let backend = Box::new(Directory::open(folder).unwrap());
        Export {
            path: path.to_owned(),
            backend,
            rules: vec![rule(clients, true, Squash::None)],
            insecure: false,
        }
    };
    client
        .server
        .reload(vec![
            export("/data", client.folder.path(), "0.0.0.0/0"),
            export("/data/other", other.path(), "10.0.0.0/30"),
            export("/data/closed", other.path(), "10.9.0.0/16"),
        ])
        .unwrap();
    fs::write(other.path().join("dir/mark"), "").unwrap();
    let mounted = client.mount("/data/other/dir").unwrap();
    assert!(client.lookup(&mounted, "mark").is_ok(), "that of the export below");
    // Who is not admitted to the longest one is not given the directory of a shorter one instead.
    assert_eq!(
        (client.mount("/data/closed/dir"), client.mount("/data/closed/none")),
        (Err(ACCES), Err(ACCES))
    );
}

#[test]
fn a_port_that_every_user_can_have_needs_an_insecure_export() {
    let client = Client::new();
    let lookup = |port: u16, insecure: bool| {
        let backend = Box::new(Directory::open(client.folder.path()).unwrap());
        let rules = vec![rule("10.0.0.0/8", true, Squash::None)];
        client.server.reload(vec![Export { path: "/data".to_owned(), backend, rules, insecure }]).unwrap();
        let peer = Peer::tcp((client.address, port).into());
        let mut mount = call_bytes(100_005, 3, MountProc::MNT, &client.user);
        mount.extend([0, 0, 0, 5, b'/', b'd', b'a', b't', b'a', 0, 0, 0]);
        let mut root = call_bytes(100_003, 3, Nfs3Proc::GETATTR, &client.user);
        root.extend(u32::try_from(client.root.data.len()).unwrap().to_be_bytes());
        root.extend(client.root.data.iter());
        let statuses = [mount, root].map(|message| {
            let reply = client.server.call(peer, Reader::new(&message), &|_| Vec::new()).unwrap();
            reply.stream[24..28].to_vec()
        });
        statuses.map(|status| words(&status)[0])
    };
    assert_eq!([lookup(1023, false), lookup(1, false), lookup(60_000, true)], [[0, 0]; 3]);
    assert_eq!([lookup(1024, false), lookup(60_000, false)], [[ACCES, 13]; 2]);
}

#[test]
fn an_address_of_the_daemon_needs_a_rule_of_its_own() {
    let client = Client::new();
    for (prefixes, is_admitted) in [
        (&["10.0.0.0/24"][..], false),
        (&["10.0.0.0/24", "10.0.0.2/32"], false),
        (&["0.0.0.0/0", "10.0.0.1/32"], true),
    ] {
        let backend = Box::new(Directory::open(client.folder.path()).unwrap());
        let rules = prefixes.iter().map(|prefix| rule(prefix, true, Squash::None)).collect();
        client
            .server
            .reload(vec![Export { path: "/data".to_owned(), backend, rules, insecure: true }])
            .unwrap();
        let mut message = call_bytes(100_003, 3, Nfs3Proc::GETATTR, &client.user);
        message.extend(u32::try_from(client.root.data.len()).unwrap().to_be_bytes());
        message.extend(client.root.data.iter());
        let status = |peer| {
            let reply = client.server.call(peer, Reader::new(&message), &|_| Vec::new()).unwrap();
            words(&reply.stream[24..28])[0]
        };
        let expected = if is_admitted { 0 } else { 13 };
        assert_eq!(status(Peer::rdma_local(client.address)), expected, "{prefixes:?}");
        assert_eq!(status(Peer::rdma(client.address)), 0, "{prefixes:?}");
    }
}
