//! Flags of other servers, with their equivalents here.

mod flags;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::exit::CommandError;

/// Name of the server whose flags `millpond tfs` takes.
const TENSORFLOW_SERVING: &str = "TensorFlow Serving";
/// Servers and their flags.
const SERVERS: [(&str, &[flags::ForeignFlag]); 4] = [
    (TENSORFLOW_SERVING, flags::TENSORFLOW_SERVING),
    ("Triton", flags::TRITON),
    ("Paddle Serving", flags::PADDLE_SERVING),
    ("OpenVINO Model Server", flags::OPENVINO),
];

/// Returns a usage error for an unknown flag that belongs to other servers, or `None` for any other
/// error.
pub(crate) fn explain(error: &clap::Error) -> Option<CommandError> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = typed.split('=').next().unwrap_or_default();
    let found = find(flag.trim_start_matches('-'));
    let servers: Vec<&str> = found.iter().map(|(server, _)| *server).collect();
    let mut hints: Vec<&str> = Vec::new();
    for (_, hint) in &found {
        if !hints.contains(hint) {
            hints.push(hint);
        }
    }
    if servers.first() == Some(&TENSORFLOW_SERVING) {
        hints.push("`millpond tfs` takes the flag as it is");
    }
    let error = CommandError::usage(format!("{flag} is a flag of {}", servers.join(" and ")));
    (!servers.is_empty()).then(|| error.hint(hints.join("; ")))
}

/// Returns the servers that have the flag, each with the equivalent here. `-` and `_` count as
/// equal, since people mix them up.
fn find(flag: &str) -> Vec<(&'static str, &'static str)> {
    let same = |known: &str| known.replace('_', "-") == flag.replace('_', "-");
    let of = |(server, flags): (&'static str, &'static [flags::ForeignFlag])| {
        let (_, equivalent) = flags.iter().find(|(known, _)| same(known))?;
        Some((server, *equivalent))
    };
    SERVERS.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::command;

    fn flags() -> Vec<String> {
        let serve = command().find_subcommand("serve").unwrap().clone();
        let long = |argument: &clap::Arg| {
            argument.get_long_and_visible_aliases().unwrap_or_default().join(" ")
        };
        serve
            .get_arguments()
            .map(long)
            .flat_map(|names| names.split(' ').map(str::to_owned).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn no_flag_of_ours_is_said_to_be_anothers() {
        for flag in flags() {
            assert!(find(&flag).is_empty(), "{flag}");
        }
    }

    #[test]
    fn each_flag_is_named_once() {
        for (server, flags) in SERVERS {
            let names: std::collections::BTreeSet<_> = flags.iter().map(|(flag, _)| flag).collect();
            assert_eq!(names.len(), flags.len(), "{server}");
        }
    }

    #[test]
    fn every_equivalent_is_a_flag_of_ours() {
        let flags = flags();
        for (flag, equivalent) in SERVERS.iter().flat_map(|(_, flags)| *flags) {
            let words =
                equivalent.split([' ', ':', ';', ',']).filter_map(|word| word.strip_prefix("--"));
            for word in words {
                assert!(flags.iter().any(|known| known == word), "{flag}: there is no --{word}");
            }
        }
    }
}
