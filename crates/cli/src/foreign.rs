//! Explains flags of other servers by their equivalents here.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use command_line::exit::CommandError;
use import::equivalents::{TENSORFLOW_SERVING, find};

/// Returns a usage error for an unknown flag of a server, in the command line `words`, that belongs
/// to other servers. Returns `None` for any other error. The flags of other servers have no
/// equivalents in commands such as `models ls --port`.
pub(crate) fn explain(words: &[OsString], error: &clap::Error) -> Option<CommandError> {
    let command = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let is_server = command == "serve" || command.starts_with('-');
    if !is_server || error.kind() != ErrorKind::UnknownArgument {
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

#[cfg(test)]
mod tests {
    use import::equivalents::SERVERS;

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
    fn no_own_flag_is_explained_as_foreign() {
        for flag in flags() {
            assert!(find(&flag).is_empty(), "{flag}");
        }
    }

    #[test]
    fn the_http_documentation_names_existing_flags() {
        let flags = flags();
        let text = include_str!("../../server/src/http/openapi/server.json");
        let words = text.split([' ', '"', ',', '.', ':', ';']);
        let named: Vec<&str> = words.filter_map(|word| word.strip_prefix("--")).collect();
        assert!(!named.is_empty());
        for word in named {
            assert!(flags.iter().any(|known| known == word), "there is no --{word}");
        }
    }

    #[test]
    fn every_equivalent_is_an_own_flag() {
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
