//! Access to memory of the program by pointers that it has passed.
//!
//! JUSTIFICATION: the arguments of a C call are pointers, of which only the program can know that they are valid. The
//! other files of the library use them through these functions, whose `unsafe` blocks state the rule of the header.
#![allow(unsafe_code, reason = "pointers of a C program; listed in UNSAFE.md")]

/// Defines functions that programs call by their names.
macro_rules! export {
    ($abi:literal $($(#[$attribute:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)?
        $body:block)*) => {$(
        $(#[$attribute])*
        #[allow(unsafe_code, reason = "a symbol that C programs bind to")]
        #[unsafe(no_mangle)]
        pub(crate) extern $abi fn $name($($arg: $type),*) $(-> $result)? {
            iwarp_verbs::aborts_on_panic(|| iwarp_verbs::uncanceled(move || $body))
        }
    )*};
    ($($functions:tt)*) => { $crate::raw::export! { "C" $($functions)* } };
}
pub(crate) use export;

/// Exports functions that may wait. A thread that waits may be canceled, and ends at a point of those below.
macro_rules! export_waiting {
    ($($functions:tt)*) => { $crate::raw::export! { "C-unwind" $($functions)* } };
}
pub(crate) use export_waiting;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use iwarp_verbs::{Access, Error, FAULTS, Mr, ProtectionDomain, cancelable};

use crate::abi_cm::{ADDRESS_BYTES, decode};
use crate::context::{OpenContext, Whole};
use crate::endpoint::QpInit;
use crate::rsocket::PollEntry;

/// Sees an object that the library has created, or one that the program passes for reading. `None` for a null pointer.
pub(crate) fn object<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: null, or an object that the program keeps until the call returns, as the header of the call demands.
    unsafe { pointer.as_ref() }
}

/// Sees an object at an address that the program has stored in a number.
pub(crate) fn pointed<'a, T>(address: u64) -> Option<&'a T> {
    object(std::ptr::with_exposed_provenance(usize::try_from(address).unwrap_or(0)))
}

/// Sees an array of the program; empty for a null pointer or a negative length.
pub(crate) fn array<'a, T>(pointer: *const T, length: c_int) -> &'a [T] {
    let length = usize::try_from(length).unwrap_or(0);
    if pointer.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the program passes this many elements, and leaves them alone until the call returns.
    unsafe { std::slice::from_raw_parts(pointer, length) }
}

/// Sees bytes of the program for reading.
pub(crate) fn bytes<'a>(pointer: *const c_void, length: usize) -> &'a [u8] {
    if pointer.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the program passes this many bytes, and leaves them alone until the call returns.
    unsafe { std::slice::from_raw_parts(pointer.cast(), length) }
}

/// Sees bytes of the program for writing.
pub(crate) fn bytes_mut<'a>(pointer: *mut c_void, length: usize) -> &'a mut [u8] {
    array_mut(pointer.cast(), length as u64)
}

/// Sees an array of the program for writing; empty for a null pointer.
pub(crate) fn array_mut<'a, T>(pointer: *mut T, length: u64) -> &'a mut [T] {
    let length = usize::try_from(length).unwrap_or(0);
    if pointer.is_null() || length == 0 {
        return &mut [];
    }
    // SAFETY: the program passes this many elements, and leaves them alone until the call returns.
    unsafe { std::slice::from_raw_parts_mut(pointer, length) }
}

/// Waits for descriptors that the program has named, as `poll` does.
pub(crate) fn poll_descriptors(entries: &mut [PollEntry], timeout_ms: c_int) -> Result<c_int, c_int> {
    let count = libc::nfds_t::try_from(entries.len()).unwrap_or(0);
    // SAFETY: `PollEntry` has the layout of `struct pollfd`, and there are `count` of them.
    let ready = cancelable(|| unsafe { poll(entries.as_mut_ptr().cast(), count, timeout_ms) });
    if ready < 0 { Err(errno::errno().0) } else { Ok(ready) }
}

/// Reads an event counter, which blocks unless the program has made it non-blocking.
pub(crate) fn read_counter(counter: BorrowedFd<'_>) -> Result<(), c_int> {
    let mut count = 0_u64;
    // SAFETY: `count` has room for the eight bytes.
    let bytes =
        cancelable(|| unsafe { read(counter.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) });
    if bytes < 0 { Err(errno::errno().0) } else { Ok(()) }
}

/// Returns true if no handler of the program asks that signals end calls: each has `SA_RESTART`. Signals that tell of a
/// fault of the thread itself, or of its abort, do not count, nor do 32 and 33 of the C library.
pub(crate) fn restarts_calls() -> bool {
    const OTHERS: [c_int; 3] = [libc::SIGABRT, 32, 33];
    let ends_calls = |signal: c_int| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: `action` has room for the answer; nothing is changed.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } == 0;
        // SAFETY: all-zero bytes are a `sigaction`, and the call has filled it if it has succeeded.
        let action = unsafe { action.assume_init() };
        let is_handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        known && is_handled && action.sa_flags & libc::SA_RESTART == 0
    };
    !(1..=64).filter(|signal| !FAULTS.contains(signal) && !OTHERS.contains(signal)).any(ends_calls)
}

// Cancellation points (`pthreads(7)`): a thread that the program has canceled ends here, which unwinds its stack, with
// the library's frames and the exported function (`C-unwind`). No thread holds a lock here. Everything else that an
// exported function does goes on to its end.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn poll(entries: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
    fn read(descriptor: c_int, to: *mut c_void, bytes: usize) -> isize;
}

/// Ends the thread if the program has canceled it (`pthread_cancel`).
pub(crate) fn end_if_canceled() {
    // SAFETY: the call unwinds the thread's stack, or does nothing.
    cancelable(|| unsafe { pthread_testcancel() });
}

/// Writes one element of an array of the program.
pub(crate) fn write<T>(array: *mut T, at: usize, value: T) {
    let place = array.wrapping_add(at);
    // SAFETY: the program's array has an element there, which is the caller's duty; it may be uninitialized.
    unsafe { place.write(value) };
}

/// Copies bytes at an address of the program, as for inline data.
pub(crate) fn copy(address: u64, to: &mut [u8]) {
    let from = std::ptr::with_exposed_provenance::<u8>(usize::try_from(address).unwrap_or(0));
    // SAFETY: the program posts memory that it may read, as long as `to`; `to` is memory of this library.
    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
}

/// Takes back an object that the library has created with [`Box::into_raw`].
pub(crate) fn take<T>(pointer: *mut T) -> Option<Box<T>> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the program destroys an object once, and does not use it afterwards.
    Some(unsafe { Box::from_raw(pointer) })
}

/// Takes back a context, of which the program has the last part.
pub(crate) fn take_context(open: *mut OpenContext) -> Option<Box<Whole>> {
    if open.is_null() {
        return None;
    }
    take(open.wrapping_byte_sub(offset_of!(Whole, open)).cast())
}

/// Registers memory of the program.
pub(crate) fn register(
    pd: &ProtectionDomain,
    start: NonNull<u8>,
    bytes: usize,
    iova: u64,
    access: Access,
) -> Result<Mr, Error> {
    // SAFETY: the program keeps the memory mapped until it deregisters it, and expects that peers write it.
    unsafe { pd.reg_mr_iova(start, bytes, iova, access) }
}

/// Reads a `struct sockaddr` of the program; `None` for a null pointer, or a family other than IPv4 and IPv6.
pub(crate) fn address(pointer: *const u8) -> Option<SocketAddr> {
    let family = object(pointer.cast::<[u8; 2]>())?;
    let length = match u16::from_ne_bytes(*family).into() {
        libc::AF_INET => 16,
        libc::AF_INET6 => ADDRESS_BYTES,
        _ => return None,
    };
    let mut bytes = [0; ADDRESS_BYTES];
    for (to, from) in bytes.iter_mut().zip(array(pointer, c_int::try_from(length).unwrap_or(0))) {
        *to = *from;
    }
    decode(&bytes)
}

/// Reads a string of the program; `None` for a null pointer, or text that is not UTF-8.
pub(crate) fn text<'a>(pointer: *const c_char) -> Option<&'a str> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the program passes a string that ends with a zero, and leaves it alone until the call returns.
    unsafe { CStr::from_ptr(pointer) }.to_str().ok()
}

/// Returns the TCP port of a service that the program has named, as the C library knows it.
pub(crate) fn service_port(name: *const c_char) -> Option<u16> {
    let hints = libc::addrinfo {
        ai_flags: libc::AI_PASSIVE,
        ai_family: libc::AF_INET,
        ai_socktype: libc::SOCK_STREAM,
        ai_protocol: 0,
        ai_addrlen: 0,
        ai_addr: std::ptr::null_mut(),
        ai_canonname: std::ptr::null_mut(),
        ai_next: std::ptr::null_mut(),
    };
    let mut list = std::ptr::null_mut();
    // SAFETY: the program passes a string that ends with a zero; the other arguments are of this function.
    let failed = unsafe { libc::getaddrinfo(std::ptr::null(), name, &raw const hints, &raw mut list) };
    if failed != 0 {
        return None;
    }
    let port = object(list)
        .and_then(|found| address(found.ai_addr.cast_const().cast()))
        .map(|address| address.port());
    // SAFETY: the C library has made the list, and nothing refers to it any more.
    unsafe { libc::freeaddrinfo(list) };
    port
}

// SAFETY: its pointers name parts of one context, which the library accesses from any thread.
unsafe impl Sync for OpenContext {}

// SAFETY: its pointers name objects of the program, which any thread may pass to a call.
unsafe impl Send for QpInit {}
