//! Everything that all commands of `millpond` share: the environment, values of flags, exit codes,
//! and output to the terminal. No other crate of the product takes settings from variables.
//!
//! # Modules
//! * Input: `environment` has the variables, `values` are types of flags and of settings,
//!   `recording` opens recordings.
//! * Output: `exit` has the codes, the error of a command, and the functions that print.

pub mod environment;
pub mod exit;
pub mod recording;
pub mod values;
