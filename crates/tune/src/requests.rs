//! Requests from files, or generated from the model's signature.

use std::path::{Path, PathBuf};

use base::{Dim, Error, NamedTensor, Result, TensorSpec};
use toml::Table;

use crate::load::{Shapes, check_names, generate};
use loadgen::random::RandomSequence;
use loadgen::wire::{from_json, from_json_lines};

/// Maximum number of different generated requests.
const GENERATED_MAX: usize = 64;
/// Maximum bytes of all generated requests.
const GENERATED_BYTES: usize = 16 << 20;
/// Minimum number of generated requests, however large they are.
const GENERATED_MIN: usize = 4;
/// Maximum number of files.
const FILES_MAX: usize = 1024;
/// Maximum bytes of all files.
const FILES_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of requests in all files.
const REQUESTS_MAX: usize = 100_000;
/// End of the names of files with one request.
const BODY: &str = "json";
/// End of the names of files with a request on each line.
const LINES: &str = "jsonl";
/// End of the names of request logs in TFRecord, the server's default.
const RECORDS: &str = "tfrecord";

/// Arguments for requests.
pub(super) struct RequestSettings<'a> {
    /// Files, or directories of files, with one request each.
    pub(super) files: &'a [PathBuf],
    /// `INPUT=1x3x48x320`, several for one input in turn.
    pub(super) dims: &'a [String],
    /// Upper bound (excluded) of generated integers.
    pub(super) index_max: u64,
    /// The model's own settings.
    pub(super) settings: &'a Table,
}

/// Returns the requests to send in turn, and a description of their origin.
///
/// # Errors
/// `InvalidArgument` if dims are not a shape or not of an input. Also the errors of [`from_files`].
pub(super) fn requests(
    specs: &[TensorSpec],
    arguments: &RequestSettings<'_>,
) -> Result<(Vec<Vec<NamedTensor>>, String)> {
    if !arguments.files.is_empty() {
        let requests = from_files(arguments.files)?;
        let what = format!("{} real requests", requests.len());
        return Ok((requests, what));
    }
    let named = dims(arguments)?;
    let given = arguments.dims.iter().filter_map(|text| Some(text.split_once('=')?.0));
    check_names(given, specs)?;
    let filled = filled_by_server(arguments.settings);
    let specs: Vec<&TensorSpec> =
        specs.iter().filter(|spec| !filled.contains(&spec.name)).collect();
    let mut requests: Vec<Vec<NamedTensor>> = Vec::new();
    let mut bytes = 0;
    for index in 0..GENERATED_MAX {
        if index >= GENERATED_MIN.max(requests_with_all_shapes(&named)) && bytes >= GENERATED_BYTES
        {
            break;
        }
        let pick = |(name, shapes): &(String, Vec<Vec<usize>>)| {
            Some((name.clone(), shapes.get(index % shapes.len().max(1))?.clone()))
        };
        let shapes = Shapes { batch: 1, other: 1, named: named.iter().filter_map(pick).collect() };
        let mut random = RandomSequence::new(loadgen::random::at(1, index as u64));
        let request: Vec<NamedTensor> = specs
            .iter()
            .map(|spec| generate(spec, &shapes, arguments.index_max, &mut random))
            .collect::<Result<_>>()?;
        bytes += request.iter().map(|input| input.tensor.byte_len()).sum::<usize>();
        requests.push(request);
    }
    let what = format!("{} requests generated from the signature", requests.len());
    Ok((requests, what))
}

/// Returns true if requests of this model can be merged, because each input's first axis is open.
pub(super) fn mergeable(specs: &[TensorSpec]) -> bool {
    let open = |spec: &TensorSpec| match &spec.shape {
        None => true,
        Some(dims) => matches!(dims.first(), Some(Dim::Dynamic(_))),
    };
    !specs.is_empty() && specs.iter().all(open)
}

/// Returns the number of requests in which each shape of each input occurs, up to
/// [`GENERATED_MAX`].
fn requests_with_all_shapes(named: &[(String, Vec<Vec<usize>>)]) -> usize {
    named.iter().map(|(_, shapes)| shapes.len()).max().unwrap_or(0).min(GENERATED_MAX)
}

/// Returns the shapes by input. They are those of the caller, else those of the model's warm-up
/// with its open sizes as 1.
fn dims(arguments: &RequestSettings<'_>) -> Result<Vec<(String, Vec<Vec<usize>>)>> {
    let mut named: Vec<(String, Vec<Vec<usize>>)> = Vec::new();
    for text in arguments.dims {
        let wanted = || Error::invalid(format!("--dims {text}: write INPUT=1x3x48x320"));
        let (name, sizes) = text.split_once('=').ok_or_else(wanted)?;
        let sizes = sizes.split(['x', ',']).map(|size| size.trim().parse::<usize>());
        let shape: Vec<usize> =
            sizes.collect::<std::result::Result<_, _>>().map_err(|_| wanted())?;
        match named.iter_mut().find(|(own, _)| own == name) {
            Some((_, shapes)) => shapes.push(shape),
            None => named.push((name.to_owned(), vec![shape])),
        }
    }
    let warm = arguments
        .settings
        .get("warmup")
        .and_then(|warmup| warmup.get("dims"))
        .and_then(|d| d.as_table());
    for (name, sizes) in warm.into_iter().flatten() {
        let size =
            |size: &toml::Value| usize::try_from(size.as_integer().unwrap_or(-1)).unwrap_or(1);
        if let (Some(sizes), false) = (sizes.as_array(), named.iter().any(|(own, _)| own == name)) {
            named.push((name.clone(), vec![sizes.iter().map(size).collect()]));
        }
    }
    Ok(named)
}

/// Returns the inputs that the server fills, according to the model's settings.
fn filled_by_server(settings: &Table) -> Vec<String> {
    let inputs = settings
        .get("schedule")
        .and_then(|section| section.get("inputs"))
        .and_then(|i| i.as_table());
    let named = |input: &toml::Value, key: &str| Some(input.get(key)?.as_str()?.to_owned());
    inputs
        .into_iter()
        .flatten()
        .flat_map(|(_, input)| [named(input, "mask"), named(input, "length")])
        .flatten()
        .collect()
}

/// Reads requests from files with one, from files with one on each line (`.jsonl`), and from
/// directories of both.
///
/// # Errors
/// `InvalidArgument` if a file is not a request, or if there is none, or if there are too many
/// files. `TooLarge` for too many requests or bytes. Also the error of a file that cannot be read.
pub(crate) fn from_files(given: &[PathBuf]) -> Result<Vec<Vec<NamedTensor>>> {
    let mut paths = Vec::new();
    for path in given {
        let meta = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?;
        if meta.is_dir() { paths.extend(json_files(path)?) } else { paths.push(path.clone()) }
    }
    if paths.is_empty() {
        return Err(Error::invalid("--requests: the directory has no .json or .jsonl file"));
    }
    if paths.len() > FILES_MAX {
        return Err(Error::invalid(format!(
            "--requests: {} files; at most {FILES_MAX}",
            paths.len()
        )));
    }
    if let Some(path) = paths.iter().find(|path| has_extension(path, RECORDS)) {
        return Err(Error::invalid(format!(
            "--requests: {} is a TFRecord; give JSON, as `millpond serve --request-log-format \
             json` logs requests",
            path.display()
        )));
    }
    let mut left = FILES_BYTES_MAX;
    let mut requests = Vec::new();
    for path in &paths {
        let bytes = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?.len();
        left = left.checked_sub(bytes).ok_or_else(|| {
            Error::too_large(format!("--requests: more than {} MiB in all", FILES_BYTES_MAX >> 20))
        })?;
        let text = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
        let room = REQUESTS_MAX - requests.len();
        let read = if has_extension(path, LINES) {
            from_json_lines(text.into(), room)
        } else if room == 0 {
            Err(Error::too_large(format!("more than {REQUESTS_MAX} requests in all")))
        } else {
            from_json(&text).map(|request| vec![request])
        };
        requests.extend(read.map_err(|e| e.context(path.display()))?);
    }
    if requests.is_empty() {
        Err(Error::invalid("--requests: no request in the files was answered when it was logged"))
    } else {
        Ok(requests)
    }
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
}

/// Returns the `.json` and `.jsonl` files of a directory by name.
fn json_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
        let path = entry.map_err(|e| Error::io(dir, &e))?.path();
        if has_extension(&path, BODY) || has_extension(&path, LINES) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use base::DType;

    use super::*;

    fn spec(name: &str, dims: &[Option<usize>]) -> TensorSpec {
        let shape = dims.iter().map(|dim| dim.map_or(Dim::Dynamic(None), Dim::Fixed)).collect();
        TensorSpec { name: name.into(), dtype: DType::F32, shape: Some(shape), optional: false }
    }

    fn shapes(dims: &[&str], settings: &str) -> Vec<Vec<usize>> {
        let specs = [spec("x", &[None, Some(3), None]), spec("m", &[None, None])];
        let dims: Vec<String> = dims.iter().map(|text| (*text).to_owned()).collect();
        let settings: Table = settings.parse().unwrap();
        let arguments =
            RequestSettings { files: &[], dims: &dims, index_max: 2, settings: &settings };
        let (requests, _) = requests(&specs, &arguments).unwrap();
        assert_eq!(requests.len(), GENERATED_MAX);
        requests[..2].iter().flatten().map(|input| input.tensor.shape().to_vec()).collect()
    }

    #[test]
    fn shapes_come_from_dims_then_the_models_warm_up_then_one() {
        assert_eq!(shapes(&[], ""), [vec![1, 3, 1], vec![1, 1], vec![1, 3, 1], vec![1, 1]]);
        let settings = "warmup.dims = { x = [-1, -1, 7] }\nschedule.inputs.x.mask = \"m\"";
        assert_eq!(shapes(&[], settings), [[1, 1, 7], [1, 1, 7]], "the mask is not sent");
        let given = shapes(&["x=1x3x4", "x=1x3x5"], settings);
        assert_eq!(given, [[1, 3, 4], [1, 3, 5]], "several take turns");
    }

    #[test]
    fn dims_of_an_unknown_input_are_refused() {
        let specs = [spec("x", &[None, Some(3)])];
        let dims = ["X=1x3".to_owned()];
        let settings = Table::new();
        let arguments =
            RequestSettings { files: &[], dims: &dims, index_max: 2, settings: &settings };
        let error = requests(&specs, &arguments).unwrap_err();
        assert!(error.message().contains("no input \"X\"; its inputs are x"), "{error}");
    }

    #[test]
    fn requests_of_a_directory_are_taken_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let request = |value: u32| {
            format!(
                r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1],"data":[{value}]}}]}}"#
            )
        };
        let files = [dir.path().to_owned()];
        assert!(from_files(&files).unwrap_err().message().contains("no .json or .jsonl file"));
        for (name, value) in [("b.json", 2), ("a.json", 1), ("notes.txt", 9)] {
            std::fs::write(dir.path().join(name), request(value)).unwrap();
        }
        let read = from_files(&files).unwrap();
        let values: Vec<f32> =
            read.iter().flat_map(|r| r[0].tensor.to_vec::<f32>().unwrap()).collect();
        assert_eq!(values, [1.0, 2.0]);
        let lines = format!("{}\n{}\n", request(3), request(4));
        std::fs::write(dir.path().join("bb.jsonl"), lines).unwrap();
        assert_eq!(from_files(&files).unwrap().len(), 4);
        std::fs::write(dir.path().join("c.json"), "{}").unwrap();
        assert!(from_files(&files).unwrap_err().message().contains("c.json"));
    }

    #[test]
    fn a_request_log_in_tfrecord_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("requests-m.tfrecord");
        std::fs::write(&path, b"j").unwrap();
        let error = from_files(&[path]).unwrap_err();
        assert!(error.message().contains("requests-m.tfrecord is a TFRecord"), "{error}");
        assert!(error.message().contains("--request-log-format json"), "{error}");
    }

    #[test]
    fn open_first_axes_can_be_merged() {
        assert!(mergeable(&[spec("x", &[None, Some(3)])]));
        assert!(!mergeable(&[spec("x", &[None]), spec("h", &[Some(2), None])]));
        assert!(!mergeable(&[spec("x", &[])]));
    }
}
