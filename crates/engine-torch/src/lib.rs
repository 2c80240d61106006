//! The LibTorch engine: TorchScript modules behind the traits of `engine`.
#![allow(unsafe_code)]
