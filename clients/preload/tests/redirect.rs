//! The preload library leads the paths of RDMA devices to a folder, and no others.

#![allow(clippy::unwrap_used, reason = "tests may end their process")]

use std::ffi::{CStr, CString};

#[path = "../src/redirect.rs"]
mod redirect;

use redirect::{Folder, is_led};

fn led(folder: &str, path: &CStr) -> Option<String> {
    let mut room = [0; 1024];
    let folder = Folder::new(folder.as_bytes())?;
    is_led(path).then(|| folder.lead(path, &mut room)).flatten().map(|path| path.to_str().unwrap().to_owned())
}

#[test]
fn paths_of_devices_are_led_to_the_folder() {
    for path in [
        c"/sys/class/infiniband",
        c"/sys/class/infiniband/",
        c"/sys/class/iwarp12dev/infiniband/iwarp12",
        c"/sys/class/infiniband/iwarp0/ports/1/state",
        c"/dev/infiniband",
        c"/dev/infiniband/uverbs0",
        c"//sys/./class//infiniband/iwarp0",
    ] {
        assert_eq!(led("/tmp/a", path), Some(format!("/tmp/a{}", path.to_str().unwrap())));
    }
}

#[test]
fn all_other_paths_stay() {
    for path in [
        c"",
        c"/",
        c"/sys",
        c"/sys/class",
        c"/sys/class/infiniband_verbs",
        c"/sys/class/infinibanD",
        c"/sys/class/net/lo",
        c"/sys/class/iwarpdev",
        c"/sys/class/iwarp0",
        c"/dev",
        c"/dev/null",
        c"/dev/infiniban",
        c"/sys/dev/infiniband",
        c"/x/dev/infiniband",
        c"sys/class/infiniband",
        c"dev/infiniband",
    ] {
        assert_eq!(led("/tmp/a", path), None, "{path:?}");
    }
}

#[test]
fn names_that_are_too_long_stay() {
    let long = CString::new([b"/dev/infiniband/".as_slice(), &[b'x'; 1100]].concat()).unwrap();
    assert_eq!(led("/tmp/a", &long), None);
    let (longest, longer) = ("/".repeat(512), "/".repeat(513));
    assert!(led(&longest, c"/dev/infiniband").is_some());
    assert_eq!(led(&longer, c"/dev/infiniband"), None);
    assert_eq!(led("tmp", c"/dev/infiniband"), None, "a relative name depends on the program's folder");
}
