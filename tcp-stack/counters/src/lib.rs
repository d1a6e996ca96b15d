//! Declaration of counters: the field, its help text, its row in an exporter and its part in the sum of two blocks
//! come from one declaration, so none can be forgotten.
#![no_std]
#![forbid(unsafe_code)]

mod histogram;

pub use histogram::{Histogram, SharedHistogram};

/// Declares a block of counters: a struct of plain `u64`s that one thread writes. With `atomic struct`, the counters
/// are `AtomicU64`s that several threads write.
///
/// ```
/// iwarp_counters::counters! {
///     /// Counters of a receiver.
///     pub struct RxStats {
///         /// Frames handed up by the port.
///         frames,
///         /// Frames dropped: shorter than their headers say.
///         drop_truncated,
///     }
/// }
/// let mut stats = RxStats::default();
/// stats.frames += 1;
/// let mut rows = Vec::new();
/// stats.visit(&mut |name, help, value| rows.push((name, help.trim(), value)));
/// assert_eq!(rows[0], ("frames", "Frames handed up by the port.", 1));
/// assert_eq!(rows.len(), RxStats::COUNT);
/// ```
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[doc = $help:literal])+ $field:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $name { $($(#[doc = $help])+ pub $field: u64,)+ }

        impl $name {
            /// Number of counters in the block.
            $vis const COUNT: usize = [$(stringify!($field)),+].len();

            /// Calls `f(name, help, value)` once per counter, in the order of declaration.
            $vis fn visit(&self, f: &mut dyn FnMut(&'static str, &'static str, u64)) {
                let Self { $($field),+ } = self;
                $(f(stringify!($field), concat!($($help),+), *$field);)+
            }

            /// Makes a block of the values that `value` returns for the names of the counters.
            $vis fn read(value: &mut dyn FnMut(&'static str) -> u64) -> Self {
                Self { $($field: value(stringify!($field)),)+ }
            }

            /// Adds another block to this one, counter by counter, wrapping.
            $vis fn add(&mut self, other: &Self) {
                let Self { $($field),+ } = other;
                $(self.$field = self.$field.wrapping_add(*$field);)+
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis atomic struct $name:ident { $($(#[doc = $help:literal])+ $field:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $vis struct $name { $($(#[doc = $help])+ pub $field: ::core::sync::atomic::AtomicU64,)+ }

        impl $name {
            /// Calls `f(name, help, value)` once per counter, in the order of declaration.
            $vis fn visit(&self, f: &mut dyn FnMut(&'static str, &'static str, u64)) {
                let Self { $($field),+ } = self;
                $(f(
                    stringify!($field),
                    concat!($($help),+),
                    $field.load(::core::sync::atomic::Ordering::Relaxed),
                );)+
            }
        }
    };
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    crate::counters! {
        /// A block of two counters.
        struct Two {
            /// The first of two.
            first,
            /// The second,
            /// on two lines.
            second,
        }
    }

    #[test]
    fn every_counter_is_visited_once_in_order() {
        let two = Two { first: 1, second: 2 };
        let mut rows = Vec::new();
        two.visit(&mut |name, _, value| rows.push((name, value)));
        assert_eq!(rows, [("first", 1), ("second", 2)]);
        assert_eq!(Two::COUNT, 2);
        let mut names = Vec::new();
        let read = Two::read(&mut |name| {
            names.push(name);
            names.len() as u64
        });
        assert_eq!((read, names), (Two { first: 1, second: 2 }, Vec::from(["first", "second"])));
    }

    crate::counters! {
        /// A block of two counters that threads share.
        atomic struct Shared {
            /// The first of two.
            first,
            /// The second of two.
            second,
        }
    }

    #[test]
    fn shared_counters_are_visited_with_their_help() {
        let shared = Shared::default();
        shared.second.fetch_add(3, core::sync::atomic::Ordering::Relaxed);
        let mut rows = Vec::new();
        shared.visit(&mut |name, help, value| rows.push((name, help, value)));
        assert_eq!(rows, [("first", " The first of two.", 0), ("second", " The second of two.", 3)]);
    }

    #[test]
    fn blocks_add_up() {
        let mut sum = Two { first: u64::MAX, second: 1 };
        sum.add(&Two { first: 2, second: 3 });
        assert_eq!(sum, Two { first: 1, second: 4 });
    }
}
