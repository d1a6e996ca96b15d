//! Every file in configs/ loads, every mistake is found where it stands, and no text panics.

mod conflicts;
mod files;
mod machine;
mod mistakes;
mod neighbors;
mod values;
