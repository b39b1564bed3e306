//! What holds of disks of ext, by theme. One program: what they share is built once, and those that wait do it beside those that work.

mod allocating;
mod background;
mod check;
mod clean;
mod copies;
mod fetching;
mod full;
mod full_trees;
mod hostile;
mod hostile_writing;
mod journal;
mod largest;
mod limits;
mod matrix;
mod names;
mod network;
mod one_opening;
mod power;
mod refusing;
mod rounds;
mod shared_attributes;
mod support;
mod torture;
mod vanishing;
mod versions;
mod written;
