//! `cargo xtask codegen`: generates Rust from the `proto` directories of crates. The result is
//! committed, so that a build needs no generator.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Crates with a directory `proto`, whose Rust is in `src/generated`.
const CRATES: [&str; 3] = ["crates/protocol", "crates/engine-tensorflow", "crates/telemetry"];

/// Crate whose descriptors are committed in [`DESCRIPTORS`]. It parses text files by them and
/// describes the gRPC services.
const DESCRIBED: &str = "crates/protocol";
/// Package whose services no test in Rust calls.
const WITHOUT_CLIENT: &str = "qdrant";
/// Name of the file of descriptors.
const DESCRIPTORS: &str = "descriptors.binpb";

/// File name to content.
type GeneratedFiles = BTreeMap<String, Vec<u8>>;

/// Writes the generated files, or with `check` compares them with what is committed.
///
/// # Errors
/// If a `.proto` file does not compile, if a file cannot be written, or, with `check`, if a file
/// differs.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    CRATES.iter().try_for_each(|folder| run_in(root, folder, check))
}

/// Generates the code of `krate`. With `check`, compares it with the files instead of writing them.
fn run_in(root: &Path, krate: &str, check: bool) -> Result<()> {
    let wanted = generate(&root.join(krate).join("proto"), krate == DESCRIBED)?;
    let shown = format!("{krate}/src/generated");
    let folder = root.join(&shown);
    let present = read(&folder)?;
    if check {
        ensure!(
            present == wanted,
            "{shown} is stale; run `cargo xtask codegen` and commit the result"
        );
        return Ok(());
    }
    std::fs::create_dir_all(&folder)?;
    for stale in present.keys().filter(|name| !wanted.contains_key(*name)) {
        std::fs::remove_file(folder.join(stale))?;
    }
    for (name, content) in &wanted {
        std::fs::write(folder.join(name), content).with_context(|| format!("{shown}/{name}"))?;
    }
    println!("codegen: {} files in {shown}", wanted.len());
    Ok(())
}

/// Generates the Rust code of the files in `proto`. With `described`, also returns their
/// descriptors.
fn generate(proto: &Path, described: bool) -> Result<GeneratedFiles> {
    let mut sources: Vec<_> =
        read(proto)?.into_keys().filter(|name| name.ends_with(".proto")).collect();
    sources.sort();
    let descriptors = protox::compile(&sources, [proto])?;
    let scratch = tempfile::tempdir()?;
    for has_client in [true, false] {
        let mut packages = descriptors.clone();
        packages.file.retain(|file| match file.package() {
            // Fields of both have these types, which make no file.
            "google.protobuf" => true,
            package => has_client == (package != WITHOUT_CLIENT),
        });
        tonic_prost_build::configure()
            .build_transport(false)
            // The server frames and routes calls itself.
            .build_server(false)
            .build_client(has_client)
            .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
            .bytes(".")
            // Ordered, so that the same message always has the same bytes.
            .btree_map(".")
            .out_dir(scratch.path())
            .compile_fds(packages)?;
    }
    let mut files = read(scratch.path())?;
    if described {
        files.insert(DESCRIPTORS.to_owned(), describe(proto, &sources)?);
    }
    Ok(files)
}

/// Returns the descriptors of `sources` and their imports, without comments and positions.
fn describe(proto: &Path, sources: &[String]) -> Result<Vec<u8>> {
    let mut compiler = protox::Compiler::new([proto])?;
    compiler.include_source_info(false).include_imports(true).open_files(sources)?;
    Ok(compiler.encode_file_descriptor_set())
}

fn read(folder: &Path) -> Result<GeneratedFiles> {
    let mut files = GeneratedFiles::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(files) };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.insert(name, std::fs::read(entry.path())?);
    }
    Ok(files)
}
