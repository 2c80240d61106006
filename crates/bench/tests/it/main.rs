//! The load generator against targets that run in this process.

mod load;
mod target;
