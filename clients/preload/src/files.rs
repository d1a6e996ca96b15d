//! Calls with paths: those of InfiniBand's devices lead to a folder that `iwarp-run --roce` has written, all others to
//! where they did.
//!
//! The functions of the C library are found when the library is loaded: a program may call `open` in a signal handler,
//! where nothing may be looked up. Constructors that run before find theirs by themselves.
//!
//! JUSTIFICATION: C programs call these functions, and pass pointers that only they can know to be valid. They go to
//! the C library as they are, except for the path.
#![allow(unsafe_code, reason = "functions that C programs call; listed in UNSAFE.md")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{DIR, FILE, mode_t};

use crate::redirect::{Folder, Room, is_led};

/// Variable with the folder: `iwarp-run` sets it.
const VARIABLE: &CStr = c"IWARP_PRELOAD_FILES";

/// Returns the folder, as of the program's start: it may change its environment later.
fn folder() -> Option<&'static Folder> {
    static FOLDER: OnceLock<Option<Folder>> = OnceLock::new();
    let found = FOLDER.get_or_init(|| {
        // SAFETY: a string that ends with a zero. This is the program's first thread, before `main`.
        let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: the environment has strings that end with a zero.
        Folder::new(unsafe { CStr::from_ptr(value) }.to_bytes())
    });
    found.as_ref()
}

/// Returns the function of the C library with this name, which `place` keeps; null if there is none.
fn find(place: &AtomicPtr<c_void>, name: &str) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { return ptr::null_mut() };
    // SAFETY: a string that ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    place.store(found, Ordering::Relaxed);
    found
}

/// Calls a function with the path that a program's path leads to. Apart from the others, which need no room for it.
#[cold]
#[inline(never)]
fn call_led<T>(folder: &Folder, path: &CStr, call: impl FnOnce(*const c_char) -> T) -> T {
    let mut room: Room = [0; _];
    call(folder.lead(path, &mut room).unwrap_or(path).as_ptr())
}

/// Defines functions with a path, behind the arguments before the first semicolon.
macro_rules! led {
    ($(fn $name:ident($($before:ident: $first:ty),*; $($after:ident: $rest:ty),*) -> $result:ty;)*) => {
        /// The functions of the C library.
        #[allow(non_snake_case, reason = "names of the C library")]
        struct Found {
            $($name: AtomicPtr<c_void>,)*
        }

        static FOUND: Found = Found { $($name: AtomicPtr::new(ptr::null_mut()),)* };

        /// Finds the functions that were not called yet.
        fn find_all() {
            $(find(&FOUND.$name, concat!(stringify!($name), "\0"));)*
        }

        $(
            /// As its manual page says, with the path that the program's path leads to.
            ///
            /// # Safety
            /// The arguments are those that its manual page demands.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(
                $($before: $first,)* path: *const c_char, $($after: $rest),*
            ) -> $result {
                type Call = unsafe extern "C-unwind" fn($($first,)* *const c_char, $($rest),*) -> $result;
                let found = find(&FOUND.$name, concat!(stringify!($name), "\0"));
                // SAFETY: null is `None`; otherwise the function has this type by its manual page.
                let Some(call) = (unsafe { std::mem::transmute::<*mut c_void, Option<Call>>(found) }) else {
                    // The program was linked with a C library that has it.
                    std::process::abort()
                };
                if let Some(folder) = folder().filter(|_| !path.is_null()) {
                    // SAFETY: the caller's path.
                    let path = unsafe { CStr::from_ptr(path) };
                    if is_led(path) {
                        // SAFETY: the caller's arguments, and a path that is valid during the call.
                        return call_led(folder, path, |path| unsafe { call($($before,)* path, $($after),*) });
                    }
                }
                // SAFETY: the caller's arguments.
                unsafe { call($($before,)* path, $($after),*) }
            }
        )*
    };
}

// `stat` and its like have pointers to structures, which differ between C libraries; so have `scandir` and its like,
// with functions. The mode of `open` is there only if the flags ask for it, and is passed on as it is.
led! {
    fn open(; flags: c_int, mode: mode_t) -> c_int;
    fn open64(; flags: c_int, mode: mode_t) -> c_int;
    fn __open_2(; flags: c_int) -> c_int;
    fn __open64_2(; flags: c_int) -> c_int;
    fn openat(at: c_int; flags: c_int, mode: mode_t) -> c_int;
    fn openat64(at: c_int; flags: c_int, mode: mode_t) -> c_int;
    fn __openat_2(at: c_int; flags: c_int) -> c_int;
    fn __openat64_2(at: c_int; flags: c_int) -> c_int;
    fn fopen(; mode: *const c_char) -> *mut FILE;
    fn fopen64(; mode: *const c_char) -> *mut FILE;
    fn freopen(; mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn freopen64(; mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn stat(; found: *mut c_void) -> c_int;
    fn stat64(; found: *mut c_void) -> c_int;
    fn lstat(; found: *mut c_void) -> c_int;
    fn lstat64(; found: *mut c_void) -> c_int;
    fn fstatat(at: c_int; found: *mut c_void, flags: c_int) -> c_int;
    fn fstatat64(at: c_int; found: *mut c_void, flags: c_int) -> c_int;
    fn statx(at: c_int; flags: c_int, mask: c_uint, found: *mut c_void) -> c_int;
    fn __xstat(version: c_int; found: *mut c_void) -> c_int;
    fn __xstat64(version: c_int; found: *mut c_void) -> c_int;
    fn __lxstat(version: c_int; found: *mut c_void) -> c_int;
    fn __lxstat64(version: c_int; found: *mut c_void) -> c_int;
    fn __fxstatat(version: c_int, at: c_int; found: *mut c_void, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, at: c_int; found: *mut c_void, flags: c_int) -> c_int;
    fn access(; mode: c_int) -> c_int;
    fn eaccess(; mode: c_int) -> c_int;
    fn euidaccess(; mode: c_int) -> c_int;
    fn faccessat(at: c_int; mode: c_int, flags: c_int) -> c_int;
    fn readlink(; to: *mut c_char, length: usize) -> isize;
    fn __readlink_chk(; to: *mut c_char, length: usize, room: usize) -> isize;
    fn readlinkat(at: c_int; to: *mut c_char, length: usize) -> isize;
    fn __readlinkat_chk(at: c_int; to: *mut c_char, length: usize, room: usize) -> isize;
    fn realpath(; to: *mut c_char) -> *mut c_char;
    fn __realpath_chk(; to: *mut c_char, room: usize) -> *mut c_char;
    fn canonicalize_file_name(;) -> *mut c_char;
    fn chdir(;) -> c_int;
    fn opendir(;) -> *mut DIR;
    fn scandir(; list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    fn scandir64(; list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    fn scandirat(at: c_int; list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    fn scandirat64(at: c_int; list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    fn getxattr(; name: *const c_char, value: *mut c_void, size: usize) -> isize;
    fn lgetxattr(; name: *const c_char, value: *mut c_void, size: usize) -> isize;
    fn listxattr(; list: *mut c_char, size: usize) -> isize;
    fn llistxattr(; list: *mut c_char, size: usize) -> isize;
}

/// Finds folder and functions when the program starts.
extern "C" fn at_start() {
    folder();
    find_all();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;
