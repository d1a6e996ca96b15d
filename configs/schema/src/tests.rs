//! Every file in configs/ loads, every mistake is reported at its place, and no text causes a panic.

mod conflicts;
mod files;
mod machine;
mod mistakes;
mod neighbors;
mod nfsd;
mod random;
mod reload;
mod sharing;
mod values;
