//! The command `amberfs`.

fn main() {}
