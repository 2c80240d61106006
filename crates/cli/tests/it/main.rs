//! The binary as a shell runs it: output, exit codes, files, and real servers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod arguments;
mod audio;
mod doctor;
mod foreign;
mod isolate;
mod mistakes;
mod program;
mod publish;
mod reference;
mod reload;
mod serve;
mod stores;
mod tfs;
mod verify;
