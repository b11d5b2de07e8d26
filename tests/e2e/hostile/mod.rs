//! Attacks, faults and bad input, and the limits that hold against them.

pub mod attacks;
pub mod bad_input;
pub mod connections;
pub mod faults;
pub mod forgery;
pub mod limits;
pub mod memory;
pub mod mistakes;
pub mod no_way_in;
pub mod order;
pub mod silence;
