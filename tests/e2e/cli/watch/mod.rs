//! `rallypoint watch`: in lines, on a screen, and what a player does with it.

pub mod lines;
pub mod player;
pub mod screen;
