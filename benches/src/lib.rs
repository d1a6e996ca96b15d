//! Allocation, instruction and speed checks.
