//! Two hosts in memory, with the objects of verbs on each. Every run is a function of its seed.

mod connections;
mod lab;
mod work;

use crate::engine::PortProtocols;
use crate::verbs;
