//! `millpond infer`: sends one request, made from JSON, an image or an audio file, and prints the
//! response.

mod audio;
mod image;
mod input;
mod json;
mod metadata;
mod show;

mod wire;

use std::path::Path;
use std::time::Instant;

use base::NamedTensor;
use clap::Args;
use command_line::exit::{CommandError, CommandResult, pretty, print};

use crate::client::{RequestContent, ServerArgs, ServerClient};
use input::InputArg;
use loadgen::connection::url_segment;

/// Maximum size of an input file.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// `millpond infer MODEL`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  millpond infer half_plus_two x=[1,2,5]
  millpond infer half_plus_two --input request.json
  millpond infer resnet --input cat.jpg --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --top 5
  millpond infer recogniser --input line.png --height 48 --channels bgr --mean 0.5 --std 0.5
  millpond infer voice --input input=speech.wav --rate 16000 --samples 576 state=zeros sr=16000")]
pub struct InferArgs {
    /// The model
    model: String,
    /// Input as NAME=JSON, NAME=@FILE or NAME=zeros
    #[arg(value_name = "NAME=VALUE")]
    values: Vec<InputArg>,
    /// Whole request (.json), or a file for one input: images (.png, .jpg) and audio (.wav, .flac,
    /// .mp3, .ogg, .m4a, .aiff) are decoded, others are raw bytes
    #[arg(long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Version [default: the latest served]
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
    /// Show the K highest values in each row of each output
    #[arg(long, value_name = "K", conflicts_with = "json")]
    top: Option<usize>,
    /// File with one label per line, for --top
    #[arg(long, value_name = "FILE", requires = "top")]
    labels: Option<std::path::PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: image::ImageArgs,
    #[command(flatten)]
    audio: audio::AudioInputArgs,
}

/// Sends the request and prints the response.
///
/// # Errors
/// Returns a usage error for wrong input, and the server's error.
pub fn run(args: &InferArgs) -> CommandResult {
    let client = ServerClient::new(&args.server)?;
    let version = args.version.map(|version| format!("/versions/{version}")).unwrap_or_default();
    let model = format!("/v2/models/{}{version}", url_segment(&args.model));
    let request = request(args, &client, &model)?;
    let started = Instant::now();
    let wire::EncodedRequest { json_bytes, body } = &request;
    let content = RequestContent::Tensors { json_bytes: *json_bytes, body };
    let answer = client.call("POST", &format!("{model}/infer"), content)?;
    let elapsed = started.elapsed();
    let answer = wire::decode(answer.good()?, answer.json_bytes)?;
    if args.json {
        return print(&pretty(&show::json(&answer)));
    }
    let labels = args.labels.as_deref().map(read_labels).transpose()?.unwrap_or_default();
    let mut text = format!(
        "{} version {}, {:.2} ms round trip\n",
        answer.model,
        answer.version,
        elapsed.as_secs_f64() * 1e3
    );
    text.push_str(&show::table(&answer.outputs));
    if let Some(count) = args.top {
        text.push_str(&show::top(&answer.outputs, count, &labels));
    }
    print(&text)
}

/// Builds the request from a whole request file, or from the inputs of the arguments.
fn request(
    args: &InferArgs,
    client: &ServerClient,
    model: &str,
) -> CommandResult<wire::EncodedRequest> {
    if let [file] = args.input.as_slice()
        && args.values.is_empty()
        && is_whole_request(file)
    {
        check_whole_request(args)?;
        // The server reads NaN and infinite numbers, which are not JSON, and names mistakes.
        let body = read_file(Path::new(file))?;
        return Ok(wire::EncodedRequest { json_bytes: body.len(), body });
    }
    let mut given: Vec<InputArg> =
        args.input.iter().map(|text| InputArg::from_file_argument(text)).collect();
    given.extend(args.values.iter().cloned());
    if given.is_empty() && !has_no_inputs(client, model) {
        return Err(CommandError::usage("no input: give --input FILE or NAME=VALUE")
            .hint("see `millpond infer --help`"));
    }
    let specs = metadata::inputs(&client.get(model)?)?;
    let given = input::assign(given, &specs)?;
    let inputs: Vec<NamedTensor> = given
        .into_iter()
        .map(|(spec, value)| input::tensor(spec, value, &args.image, &args.audio))
        .collect::<CommandResult<_>>()?;
    Ok(wire::encode(&inputs))
}

/// Returns true if the server has the model and it has no inputs. An error of the server counts as
/// false. The command lacks inputs in any case, and a repeated command shows the error.
fn has_no_inputs(client: &ServerClient, model: &str) -> bool {
    let specs = client.get(model).and_then(|facts| metadata::inputs(&facts));
    specs.is_ok_and(|specs| specs.is_empty())
}

/// Returns true for a `.json` file without a name, which is a whole request and not one tensor.
fn is_whole_request(argument: &str) -> bool {
    InputArg::from_file_argument(argument).name.is_none()
        && argument.to_ascii_lowercase().ends_with(".json")
}

/// Refuses flags of images and audio files beside a whole request.
fn check_whole_request(args: &InferArgs) -> CommandResult {
    let stated = [args.image.stated(), args.audio.stated()].concat();
    if stated.is_empty() {
        return Ok(());
    }
    Err(CommandError::usage(format!(
        "{}: no effect on a whole request (.json), which is sent as it is",
        stated.join(", ")
    ))
    .hint("give the image or audio file with --input, or remove these flags"))
}

/// Reads a file given on the command line.
fn read_file(path: &Path) -> CommandResult<Vec<u8>> {
    let unreadable =
        |why: &dyn std::fmt::Display| CommandError::failed(format!("{}: {why}", path.display()));
    let meta = std::fs::metadata(path).map_err(|error| unreadable(&error))?;
    if meta.len() > FILE_BYTES_MAX {
        return Err(unreadable(&"larger than 1 GiB"));
    }
    std::fs::read(path).map_err(|error| unreadable(&error))
}

fn read_labels(path: &Path) -> CommandResult<Vec<String>> {
    let bytes = read_file(path)?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        infer: InferArgs,
    }

    #[test]
    fn a_whole_request_takes_no_flags_of_files() {
        let check = |flags: &[&str]| {
            let words = ["infer", "m", "--input", "request.json"].iter().chain(flags).copied();
            check_whole_request(&Line::try_parse_from(words).unwrap().infer)
        };
        let error = check(&["--size", "2x2", "--rate", "16000"]).unwrap_err();
        assert!(error.message().starts_with("--size, --rate: no effect"), "{}", error.message());
        assert!(check(&["--top", "5"]).is_ok());
    }
}
