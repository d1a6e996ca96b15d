//! Limits of one user, over all its programs, and the room that they leave to others.

use iwarp_shared_verbs::methods::{MemoryPart, RegParts};
use rustix::fs::{FallocateFlags, SealFlags};

use super::*;

async fn open_as(applications: &Applications, uid: u32) -> Program {
    let peer = Peer { pid: 1, uid, gid: uid, groups: Vec::new() };
    Program::open_by(applications, &peer).await
}

/// Asks until a request is refused. Returns how many were not, and the daemon's reason.
async fn until_refused(
    applications: &Applications,
    programs: &[Program],
    request: impl Fn(&Program) -> Request,
) -> (usize, String) {
    for made in 0..1000 {
        let program = &programs[made % programs.len()];
        let executed = applications.execute(&program.session, vec![request(program)]).await.unwrap();
        match executed.results[0] {
            Ok(_) => assert_eq!(executed.reason, None),
            Err(error) => {
                assert_eq!(error, VerbsError::NoResources);
                return (made, executed.reason.expect("a reason"));
            }
        }
    }
    panic!("never refused");
}

/// The tables of a worker and port are shared by all users, so that one user has a share of them over all its contexts.
#[test]
fn one_user_leaves_room_in_each_table() {
    with_workers(async |mut applications| {
        let settings = applications.settings.get_mut();
        (settings.queue_pairs_max, settings.memory_regions_max, settings.user.share) = (8, 12, 50);
        // On two workers in turn.
        let programs: Vec<Program> = {
            let mut all = Vec::new();
            for _ in 0..4 {
                all.push(open_as(&applications, 1000).await);
            }
            all
        };
        let [first, second, third, fourth]: [Program; 4] = programs.try_into().unwrap_or_else(|_| panic!());
        let groups = [[first, third], [second, fourth]];
        let other = [open_as(&applications, 1001).await, open_as(&applications, 1001).await];
        type Make = fn(&Program) -> Request;
        let kinds: [(&str, usize, Make); 6] = [
            ("protection domains", 4 - 2, |_| Request::AllocPd),
            ("completion queues", 8 - 2, |_| Request::CreateCq(1)),
            ("queue pairs", 4, |program| Request::CreateQp(program.init())),
            ("shared receive queues", 4, |program| Request::CreateSrq {
                pd: program.pd,
                max_wr: 1,
                max_sge: 1,
            }),
            ("memory windows", 6, |program| Request::AllocMw(program.pd)),
            ("ids", 8, |_| Request::CreateId(None)),
        ];
        for (what, most, make) in kinds {
            for programs in &groups {
                let (made, reason) = until_refused(&applications, programs, make).await;
                assert_eq!(made, most, "{what}");
                assert!(reason.contains(what) && reason.contains("applications.user_share"), "{reason}");
            }
            for program in &other {
                program.ask(&applications, make(program)).await;
            }
        }
        // Destroying an object frees its place, for any context of the user.
        let [program, _] = &groups[0];
        let pd = program.pd;
        applications.execute(&program.session, vec![Request::DeallocPd(pd)]).await.unwrap();
        let users = applications.users();
        let row = |uid: u32, what: &str| {
            let user = users.iter().find(|user| user.uid == uid).unwrap();
            let row = user.usage.iter().find(|row| row.what == what && row.per_device).unwrap();
            (row.used, row.max)
        };
        assert_eq!((row(1000, "ids"), row(1001, "ids")), ((8, 8), (1, 8)));
        assert_eq!((row(1000, "memory windows"), row(1001, "queue pairs")), ((6, 6), (1, 4)));
    });
}

#[test]
fn memory_numbers_are_shared_among_users() {
    with_workers(async |mut applications| {
        let settings = applications.settings.get_mut();
        (settings.memory_regions_max, settings.user.share) = (8, 75);
        let programs = [open_as(&applications, 1000).await, open_as(&applications, 1000).await];
        let alloc = |program: usize| {
            applications
                .alloc(&programs[program].session, AllocMemory { bytes: 1, exchange: false, shared: false })
        };
        for at in 0..6 {
            alloc(at % 2).await.unwrap();
        }
        let refused = alloc(0).await.unwrap_err();
        assert!(
            refused.message.contains("applications.user_share") && refused.message.contains('6'),
            "{refused}"
        );
        let other = open_as(&applications, 1001).await;
        applications
            .alloc(&other.session, AllocMemory { bytes: 1, exchange: true, shared: false })
            .await
            .unwrap();
    });
}

/// The memory of the worker's queues is the user's, as the rings are.
#[test]
fn queues_of_the_worker_count_for_user_memory() {
    with_workers(async |mut applications| {
        applications.settings.get_mut().user.memory_bytes = 2 * QUEUE_BYTES_DEFAULT + (4 << 20);
        let programs = [open_as(&applications, 1000).await, open_as(&applications, 1000).await];
        let large = QpCap { max_send_wr: 1024, max_recv_wr: 1024, max_send_sge: 8, ..QpCap::default() };
        let init = |program: &Program| QpInit { cap: large, ..program.init() };
        let bytes = init(&programs[0]).memory_bytes(None);
        let before = programs[0].session.app.borrow().usage().memory_bytes;
        let (made, reason) =
            until_refused(&applications, &programs, |program| Request::CreateQp(init(program))).await;
        assert!(made > 2 && made as u64 <= (4 << 20) / bytes, "{made}");
        assert!(reason.contains("applications.user_memory"), "{reason}");
        let after = programs[0].session.app.borrow().usage().memory_bytes;
        assert_eq!(after - before, (made as u64).div_ceil(2) * bytes);
        let other = open_as(&applications, 1001).await;
        other.ask(&applications, Request::CreateQp(init(&other))).await;
    });
}

/// Memory on ordinary pages takes nothing of the hugepages that the configuration allows.
#[test]
fn small_buffers_leave_the_hugepages_to_regions() {
    with_workers(async |applications| {
        *applications.regions.lock().await = Regions::new(8, true, Some(4 << 20));
        let program = open_as(&applications, 1000).await;
        let before = program.session.app.borrow().usage().memory_bytes;
        for (at, bytes) in [1, 4096, 8192, 8192, 100_000].into_iter().cycle().take(200).enumerate() {
            let asked = AllocMemory { bytes, exchange: at % 2 == 0, shared: false };
            applications.alloc(&program.session, asked).await.unwrap();
        }
        let pages = [1, 1, 2, 2, 25].iter().sum::<u64>() * 40;
        let after = program.session.app.borrow().usage().memory_bytes;
        assert_eq!(after - before, pages * 4096, "whole pages");
        let reserved = applications.regions.lock().await.reserve(4 << 20);
        assert_eq!(reserved.unwrap(), 4 << 20);
    });
}

/// Where ordinary pages are not allowed, small buffers are pieces of one hugepage, each a memory region of its own.
#[test]
fn small_buffers_share_a_hugepage() {
    with_workers(async |applications| {
        *applications.regions.lock().await = Regions::new(8, false, Some(4 << 20));
        let [program, other] = [open_as(&applications, 1000).await, open_as(&applications, 1000).await];
        let access = Access::LOCAL_WRITE;
        let register = async |program: &Program, memory: u32, offset: u64, bytes: u64| {
            let parts = vec![MemoryPart::Exchanged { memory, offset, bytes }];
            let asked = RegParts { pd: program.pd, address: 0x10_0000 + offset, parts, access };
            applications.register_parts(&program.session, asked).await
        };
        let asked = AllocMemory { bytes: 8192, exchange: false, shared: true };
        let before = program.session.app.borrow().usage().memory_bytes;
        match applications.alloc(&program.session, asked.clone()).await {
            Ok(_) => {}
            Err(error) if iwarp_engine::memory::hugepages().available() == 0 => {
                assert!(error.message.contains("hugepages"), "{error}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let number = *program.session.app.borrow().memories.last_key_value().unwrap().0;
        let after = program.session.app.borrow().usage().memory_bytes;
        assert_eq!(after - before, HUGEPAGE_BYTES, "what the user has");
        let mut regions = Vec::new();
        for at in 0..49 {
            regions.push(register(&program, number, at * 8192, 8192).await.unwrap());
        }
        assert!(regions.iter().enumerate().all(|(at, mr)| mr.addr == 0x10_0000 + at as u64 * 8192));
        let rows = applications.memory_regions(ALL).unwrap();
        assert_eq!(rows.len(), 49);
        for row in rows {
            assert_eq!((row.kind, row.bytes, row.kernel_bytes), (MrKind::Hugepages, 8192, 0));
        }
        let left = applications.regions.lock().await.reserve(2 << 20);
        assert_eq!(left.unwrap(), 2 << 20, "one of two hugepages is left");
        applications.regions.lock().await.release(2 << 20);
        // Bounds are those of the hugepage, and the hugepage is the program's alone.
        assert!(register(&program, number, HUGEPAGE_BYTES - 8192, 8193).await.is_err());
        let refused = register(&other, number, 0, 8192).await.unwrap_err();
        assert_eq!(refused.data.kind, ErrorKind::NoSuchObject);
        assert!(applications.free_memory(&program.session, number).await.is_err(), "it is in use");
        for mr in regions {
            let done = applications.execute(&program.session, vec![Request::DeregMr(mr.id)]).await.unwrap();
            done.results[0].unwrap();
        }
        // The worker gives back the regions: here, the test does.
        let mut numbers: Vec<u32> = program.session.app.borrow().memories.keys().copied().collect();
        numbers.retain(|of_region| *of_region != number);
        assert_eq!(numbers.len(), 49);
        applications.free(&program.session, numbers, ()).await;
        applications.free_memory(&program.session, number).await.unwrap();
        assert_eq!(program.session.app.borrow().usage().memory_bytes, before);
        // Memory that the program does not share, and large memory, is registered as a whole.
        for (bytes, shared) in [(8192, false), (SMALL_BYTES + 1, true)] {
            applications.alloc(&other.session, AllocMemory { bytes, shared, ..asked }).await.unwrap();
            let app = other.session.app.borrow();
            let memory = app.memories.last_key_value().unwrap().1;
            let mapped = memory.memory.as_ref().unwrap();
            assert_eq!((mapped.bytes(), memory.parts), (bytes, None));
        }
    });
}

/// A program that seals its memory first cannot have the daemon access pages that it can free.
#[test]
fn memory_that_a_program_has_sealed_is_not_registered() {
    with_workers(async |applications| {
        let program = open_as(&applications, 1000).await;
        for (bytes, exchange) in [(1, false), (100_000, false), (3 << 20, false), (100_000, true)] {
            applications
                .alloc(&program.session, AllocMemory { bytes, exchange, shared: false })
                .await
                .unwrap();
            let (number, memory) = {
                let app = program.session.app.borrow();
                let (number, memory) = app.memories.last_key_value().unwrap();
                (*number, Arc::clone(memory.memory.as_ref().unwrap()))
            };
            rustix::fs::fcntl_add_seals(memory.descriptor().unwrap(), SealFlags::SEAL).unwrap();
            let access = Access::LOCAL_WRITE;
            let registered = if exchange {
                let parts = vec![MemoryPart::Exchanged { memory: number, offset: 0, bytes }];
                let asked = RegParts { pd: program.pd, address: 0x1000, parts, access };
                applications.register_parts(&program.session, asked).await
            } else {
                let asked = RegMr { memory: number, pd: program.pd, base: AddressBase::Zero, access };
                applications.register(&program.session, asked).await
            };
            let refused = registered.unwrap_err();
            assert_eq!(refused.data.kind, ErrorKind::InvalidParams);
            assert!(refused.message.contains("F_SEAL_SEAL") && refused.data.help.is_some(), "{refused}");
        }
    });
}

#[test]
fn ports_below_1024_are_for_root_and_those_of_the_configuration() {
    with_workers(async |mut applications| {
        applications.settings.get_mut().privileged_ports = vec![111, 2];
        for uid in [0, 1, 1000, 65_534] {
            let program = open_as(&applications, uid).await;
            for port in [0, 1, 2, 22, 111, 1023, 1024, 2049, 65_535] {
                let mut address = address(0, 0);
                for ip in [address.ip(), std::net::Ipv4Addr::UNSPECIFIED.into()] {
                    address = (ip, port).into();
                    let request = vec![Request::CreateId(Some(address))];
                    let executed = applications.execute(&program.session, request).await.unwrap();
                    let may = uid == 0 || !(1..1024).contains(&port) || [2, 111].contains(&port);
                    match executed.results[0] {
                        Ok(Response::Id(id)) if may => {
                            program.ask(&applications, Request::DestroyId(id)).await;
                        }
                        Err(VerbsError::NotPermitted) if !may => {
                            let reason = executed.reason.unwrap();
                            assert!(reason.contains("applications.privileged_ports"), "{reason}");
                        }
                        result => panic!("{uid} {address}: {result:?}"),
                    }
                }
            }
            applications.close(program.session).await;
        }
    });
}

/// The worker would wait for the kernel while a program frees pages of its queues.
#[test]
fn queues_are_closed_before_they_are_served() {
    with_workers(async |applications| {
        let line =
            br#"{"jsonrpc":"2.0","id":1,"method":"context.execute","params":{"requests":["alloc_pd"]}}"#;
        let request = || ControlRequest::from_line(line).unwrap();
        for sealed in [false, true] {
            let peer = Peer { pid: 1, uid: 1000, gid: 1000, groups: Vec::new() };
            let mut session = applications.open(&peer).unwrap();
            let open = Open { device: None, queue_bytes: None };
            applications.open_context(&mut session, open).await.unwrap();
            let queues = session.queues.clone().unwrap();
            let punch = || {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(queues.descriptor().unwrap(), flags, 1 << 20, 1 << 20)
            };
            punch().expect("nobody serves them yet");
            if sealed {
                rustix::fs::fcntl_add_seals(queues.descriptor().unwrap(), SealFlags::SEAL).unwrap();
                for _ in 0..2 {
                    let refused = applications.handle(&mut session, request(), None).await.unwrap_err();
                    assert_eq!(refused.data.kind, ErrorKind::InvalidParams);
                }
            } else {
                for _ in 0..2 {
                    applications.handle(&mut session, request(), None).await.unwrap();
                }
                punch().unwrap_err();
            }
            applications.close(session).await;
        }
    });
}
