//! The click-through model as a TorchScript module, with the same parameters and answers as in
//! ONNX.

use std::fmt::Write as _;
use std::path::Path;

use base::Result;
use engine_torch::TorchEngine;
use engine_torch::build::{TorchParameter, module};

use super::ctr::{Ctr, CtrContent, DENSE, TABLES};
use super::layers::Layers;

/// Name of the file in a version's directory.
pub const FILE: &str = "model.pt";

/// Returns the `millpond.toml` of the model: TorchScript has neither types nor shapes.
pub fn settings() -> String {
    format!(
        "[signature]\n\
         inputs = [{{ name = \"sparse\", dtype = \"int64\", shape = [-1, {TABLES}] }}, \
         {{ name = \"dense\", dtype = \"float32\", shape = [-1, {DENSE}] }}]\n\
         outputs = [{{ name = \"prob\", dtype = \"float32\", shape = [-1, 1] }}]\n"
    )
}

/// Writes `content` of `ctr` into `dir`. `progress` gets the bytes of each parameter.
pub fn write(
    engine: &TorchEngine,
    ctr: &Ctr,
    content: CtrContent,
    dir: &Path,
    progress: &dyn Fn(u64),
) -> Result<()> {
    let tables = ctr.tables(content).into_iter().enumerate().map(|(index, table)| {
        let fill = move |values: &mut [f32]| {
            values.iter_mut().zip(0..).for_each(|(value, place)| *value = table.value(place));
        };
        TorchParameter::filled(&format!("emb_{index}"), &table.dims, fill)
    });
    let layers = ctr
        .layer_values(content)
        .into_iter()
        .map(|(own, values)| TorchParameter::floats(&own.name, &own.dims, values));
    module(engine, &dir.join(FILE), &source(ctr.own_layers()), tables.chain(layers).collect())?;
    progress(ctr.bytes());
    Ok(())
}

/// Returns the method in TorchScript's language.
fn source(layers: &Layers) -> String {
    let parts: Vec<String> = (0..TABLES)
        .map(|table| format!("self.emb_{table}.index_select(0, sparse[:, {table}])"))
        .collect();
    let mut source = format!(
        "def forward(self, sparse: Tensor, dense: Tensor) -> Dict[str, Tensor]:\n    x = torch.cat([{}, dense], 1)\n",
        parts.join(", ")
    );
    let last = layers.widths.len() - 2;
    for layer in 0..=last {
        let sum = format!("torch.addmm(self.b{layer}, x, self.w{layer})");
        let value = match (layer == last, layers.sigmoid) {
            (false, _) => format!("torch.relu({sum})"),
            (true, true) => format!("torch.sigmoid({sum})"),
            (true, false) => sum,
        };
        // Writing to a string cannot fail.
        let _ = writeln!(source, "    x = {value}");
    }
    source + "    return {\"prob\": x}\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::TOLERANCE;
    use engine::LibrarySearch;
    use engine::{Engine, LoadRequest, SessionOptions};

    #[test]
    fn the_method_names_every_parameter() {
        let source = source(Ctr::of_bytes(4_000_000).own_layers());
        for name in
            ["self.emb_0.", "self.emb_25.", "self.b0,", "self.w2)", "torch.sigmoid", "\"prob\""]
        {
            assert!(source.contains(name), "{name} in {source}");
        }
        assert_eq!(source.matches("torch.relu").count(), 2);
        let file: toml::Table = settings().parse().unwrap();
        let signature: engine::SignatureFile = file["signature"].clone().try_into().unwrap();
        signature.check().unwrap();
    }

    /// LibTorch computes from the file the reference's answers from the seed. `make torch` makes
    /// it.
    #[test]
    fn the_engine_agrees_with_the_reference() {
        let search = LibrarySearch::around_process(None, None);
        let engine = TorchEngine::new(search);
        let dir = tempfile::tempdir().unwrap();
        let ctr = Ctr::of_bytes(4_000_000);
        write(&engine, &ctr, CtrContent::of(7), dir.path(), &|_| {}).unwrap();
        let file: toml::Table = settings().parse().unwrap();
        let options = SessionOptions {
            signature: file["signature"].clone().try_into().unwrap(),
            ..SessionOptions::default()
        };
        let request =
            LoadRequest { graph: dir.path().join(FILE), options, ..LoadRequest::default() };
        let session = engine.load(&request).unwrap();
        let features = ctr.inputs(1, 0, 5);
        let outputs = session.run(&features.tensors().unwrap(), &[]).unwrap();
        let answer = outputs[0].tensor.to_vec::<f32>().unwrap();
        let wanted = &ctr.reference(CtrContent::of(7), [&features])[0];
        assert_eq!(answer.len(), wanted.len());
        assert!(
            answer.iter().zip(wanted).all(|(one, other)| (one - other).abs() <= TOLERANCE),
            "{answer:?}"
        );
    }
}
