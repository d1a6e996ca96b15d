//! Users of an object: an object in use is not destroyed.

use std::ffi::c_int;
use std::sync::Arc;

use crate::raw::{object, take};

/// Users of an object. The count is that of the handles, which any thread may create and drop.
#[derive(Debug, Default)]
pub(crate) struct Users(Arc<()>);

/// Use of an object, until dropped.
#[derive(Debug)]
pub(crate) struct Use(Arc<()>);

impl Users {
    pub(crate) fn enter(&self) -> Use {
        Use(Arc::clone(&self.0))
    }

    pub(crate) fn is_empty(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// Takes back an object that the program destroys. `EBUSY` if it has users: then nothing has changed.
pub(crate) fn unused<T>(pointer: *mut T, users: impl FnOnce(&T) -> &Users) -> Result<Box<T>, c_int> {
    let object = object(pointer).ok_or(libc::EINVAL)?;
    if !users(object).is_empty() {
        return Err(libc::EBUSY);
    }
    take(pointer).ok_or(libc::EINVAL)
}

/// Returns the error number of a call, 0 for success.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Users, unused};

    #[test]
    fn an_object_in_use_stays() {
        let pointer = Box::into_raw(Box::<Users>::default());
        let first = crate::raw::object(pointer).unwrap().enter();
        let second = crate::raw::object(pointer).unwrap().enter();
        for user in [first, second] {
            assert_eq!(unused(pointer, |users| users).err(), Some(libc::EBUSY));
            drop(user);
        }
        assert!(unused(pointer, |users| users).is_ok());
        assert_eq!(unused(std::ptr::null_mut::<Users>(), |users| users).err(), Some(libc::EINVAL));
    }
}
