//! Values of events as fields of the log.

use std::net::SocketAddr;

use tracing::Value;
use tracing::field::{DisplayValue, display};

/// Type of an event's field.
pub(super) trait Field {
    /// Type of the field in the log.
    type Logged<'a>: Value
    where
        Self: 'a;

    /// Returns the value for the log.
    fn value(&self) -> Self::Logged<'_>;
}

impl Field for String {
    type Logged<'a> = &'a str;

    fn value(&self) -> &str {
        self
    }
}

impl Field for &'static str {
    type Logged<'a> = &'static str;

    fn value(&self) -> &'static str {
        self
    }
}

impl Field for u32 {
    type Logged<'a> = u64;

    fn value(&self) -> u64 {
        u64::from(*self)
    }
}

impl Field for u64 {
    type Logged<'a> = Self;

    fn value(&self) -> Self {
        *self
    }
}

impl Field for SocketAddr {
    type Logged<'a> = DisplayValue<&'a Self>;

    fn value(&self) -> DisplayValue<&Self> {
        display(self)
    }
}

impl<T: Field + 'static> Field for Option<T> {
    type Logged<'a> = Option<T::Logged<'a>>;

    fn value(&self) -> Option<T::Logged<'_>> {
        self.as_ref().map(T::value)
    }
}
