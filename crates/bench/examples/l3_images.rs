#![allow(missing_docs)]
use clap::Parser;
#[derive(Parser)]
struct Cli { #[command(flatten)] args: millpond_bench::images::ImagesArgs }
fn main() {
    let env = millpond_bench::BenchEnv {
        millpond: std::env::current_exe().unwrap_or_default(),
        onnxruntime: engine_onnx::LibrarySearch::around_process(None, None),
        libtorch: engine_torch::LibrarySearch::around_process(None, None),
        audio_data: None,
        cache_dir: "/tmp/w/l3tmp".into(),
        demo_seconds: None,
    };
    if let Err(error) = millpond_bench::images::run(&Cli::parse().args, &env) { eprintln!("{error}"); std::process::exit(1); }
}
