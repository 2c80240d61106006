//! Edits of a model's settings file that leave every other line unchanged.
//!
//! The text is edited and not rewritten from its values, because such files have comments. The
//! result is parsed and compared with the intended settings. A form that the edit does not know is
//! then an error that shows the lines to add, never a file with another meaning.

use std::ops::Range;
use std::path::{Path, PathBuf};

use base::{Error, Result};
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::space::TunePoint;

/// Name of the file in a model's directory.
pub(super) const MODEL_FILE: &str = "millpond.toml";
/// Maximum size of the file, as in the server.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of copies of the file.
const BACKUPS_MAX: u32 = 1000;
/// Maximum number of lines for a printed difference.
const DIFF_LINES_MAX: usize = 2000;

const SECTION: &str = "schedule";
const INTRA_OP: &str = "intra-op-threads";
const PREFERRED: &str = "preferred-batch-sizes";
const ALLOWED: &str = "allowed-batch-sizes";
const DATA_DEPENDENT: &str = "data-dependent-shapes";

/// Returns the text of the model's file. Empty if there is none.
///
/// # Errors
/// If it cannot be read, or is too large.
pub(super) fn read(model_dir: &Path) -> Result<String> {
    let path = model_dir.join(MODEL_FILE);
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(Error::io(&path, &error)),
        Ok(meta) if meta.len() > FILE_BYTES_MAX => {
            return Err(Error::too_large(format!(
                "{}: larger than a settings file can be",
                path.display()
            )));
        }
        Ok(_) => {}
    }
    std::fs::read_to_string(&path).map_err(|e| Error::io(&path, &e))
}

/// Returns `text` with the settings of `point`. All other lines stay.
///
/// # Errors
/// `InvalidArgument` if `text` is not TOML, or has a form that this cannot edit.
pub(super) fn with_point(text: &str, point: &TunePoint) -> Result<String> {
    let broken = |e: toml::de::Error| {
        Error::invalid(format!(
            "{MODEL_FILE}: {}",
            e.to_string().lines().collect::<Vec<_>>().join(" ")
        ))
    };
    let before: Table = text.parse().map_err(broken)?;
    let settings = settings(point, &before)?;
    let mut wanted = before.clone();
    if point.intra_op > 1 || wanted.contains_key(INTRA_OP) {
        wanted.insert(INTRA_OP.into(), Value::Integer(point.intra_op as i64));
    }
    let section = wanted.entry(SECTION).or_insert_with(|| Value::Table(Table::new()));
    let cannot = || {
        let lines: String =
            settings.iter().map(|(key, value)| format!("\n{key} = {value}")).collect();
        Error::invalid(format!(
            "{MODEL_FILE}: [schedule] has a form that cannot be edited here; write it as a section of its \
             own with{lines}"
        ))
    };
    let section = section.as_table_mut().ok_or_else(cannot)?;
    section.extend(settings.clone());
    let edited = edit(text, &settings, wanted.get(INTRA_OP)).map_err(broken)?;
    match edited.parse::<Table>() {
        Ok(after) if after == wanted => Ok(edited),
        _ => Err(cannot()),
    }
}

/// Returns the keys of `[schedule]` to set.
fn settings(point: &TunePoint, before: &Table) -> Result<Table> {
    let internal = |e: &dyn std::fmt::Display| Error::internal(format!("settings: {e}"));
    let mut settings = Table::try_from(point.schedule()).map_err(|e| internal(&e))?;
    let sizes_of = |key: &str| {
        let section = before.get(SECTION).filter(|_| point.merged);
        section.and_then(|section| section.get(key)).and_then(Value::as_array)
    };
    // The server refuses preferred sizes above the batch's own.
    if let Some(sizes) = sizes_of(PREFERRED) {
        let fits =
            |size: &&Value| size.as_integer().is_some_and(|size| size <= point.max_batch as i64);
        let kept: Vec<Value> = sizes.iter().filter(fits).cloned().collect();
        if kept.len() < sizes.len() {
            settings.insert(PREFERRED.into(), Value::Array(kept));
        }
    }
    // The server also refuses batches above the last allowed size.
    if let Some(sizes) = sizes_of(ALLOWED)
        && let Some(last) = sizes.last().and_then(Value::as_integer)
        && last < point.max_batch as i64
    {
        let mut sizes = sizes.clone();
        sizes.push(Value::Integer(point.max_batch as i64));
        settings.insert(ALLOWED.into(), Value::Array(sizes));
    }
    // The server refuses it without merging.
    let section = before.get(SECTION).filter(|_| !point.merged);
    if section.and_then(|section| section.get(DATA_DEPENDENT)).and_then(Value::as_bool)
        == Some(true)
    {
        settings.insert(DATA_DEPENDENT.into(), Value::Boolean(false));
    }
    Ok(settings)
}

/// Replacement of a range of the text.
struct TextChange {
    at: Range<usize>,
    text: String,
}

/// Changes or adds the settings of the section `schedule`, and `intra-op-threads`. The rest of the
/// text stays as it is, with its comments.
fn edit(text: &str, settings: &Table, intra_op: Option<&Value>) -> Result<String, toml::de::Error> {
    let document = DeTable::parse(text)?;
    let root = document.get_ref();
    let value_at = |table: &DeTable<'_>, key: &str| {
        table.iter().find(|(own, _)| own.get_ref().as_ref() == key).map(|(_, value)| value.span())
    };
    let section =
        root.iter().find(|(own, _)| own.get_ref().as_ref() == SECTION).map(|(_, value)| value);
    let inside = section.and_then(|value| match value.get_ref() {
        DeValue::Table(table) => Some(table),
        _ => None,
    });
    let mut changes = Vec::new();
    let mut missing = String::new();
    for (key, value) in settings {
        match inside.and_then(|table| value_at(table, key)) {
            Some(at) => changes.push(TextChange { at, text: value.to_string() }),
            None => missing += &format!("{key} = {value}\n"),
        }
    }
    if !missing.is_empty() {
        changes.push(match header_end(text) {
            Some(end) => TextChange { at: end..end, text: at_line_start(text, end, &missing) },
            None => {
                let gap = if text.trim().is_empty() { "" } else { "\n" };
                let section = format!("{gap}[{SECTION}]\n{missing}");
                TextChange {
                    at: text.len()..text.len(),
                    text: at_line_start(text, text.len(), &section),
                }
            }
        });
    }
    if let Some(value) = intra_op {
        changes.push(match value_at(root, INTRA_OP) {
            Some(at) => TextChange { at, text: value.to_string() },
            // Before the first section, because it belongs to none.
            None => TextChange { at: 0..0, text: format!("{INTRA_OP} = {value}\n") },
        });
    }
    changes.sort_by_key(|change| std::cmp::Reverse(change.at.start));
    let mut edited = text.to_owned();
    changes.into_iter().for_each(|change| edited.replace_range(change.at, &change.text));
    Ok(edited)
}

/// Returns the start of the line after `[schedule]`.
fn header_end(text: &str) -> Option<usize> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let end = start + line.len();
        let bare = line.split('#').next().unwrap_or_default();
        let name = bare.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if name.is_some_and(|name| name.trim() == SECTION) {
            return Some(end);
        }
        start = end;
    }
    None
}

/// Returns `addition`, after a line break if the text before `at` does not end with one.
fn at_line_start(text: &str, at: usize, addition: &str) -> String {
    let broken = text[..at].is_empty() || text[..at].ends_with('\n');
    if broken { addition.to_owned() } else { format!("\n{addition}") }
}

/// Replaces the model's file by `text` in one step, after a copy of the old one to a free name that
/// begins with `millpond.toml.bak`. Follows a link. Returns the copy's path if there was a file.
///
/// # Errors
/// If a file cannot be written. The old one then still exists.
pub(super) fn replace(model_dir: &Path, text: &str) -> Result<Option<PathBuf>> {
    let named = model_dir.join(MODEL_FILE);
    // A rename would replace a link, and not the file that other models may share.
    let followed = std::fs::canonicalize(&named).ok().filter(|target| target.is_file());
    let path = followed.unwrap_or(named);
    let target_dir = path.parent().unwrap_or(model_dir);
    // Files that links of other models name may be in the same directory.
    let name = path.file_name().unwrap_or_default().display();
    let part = target_dir.join(format!(".{name}.part"));
    std::fs::write(&part, text).map_err(|e| Error::io(&part, &e))?;
    sync(&part)?;
    let mut backup = None;
    if let Ok(meta) = std::fs::metadata(&path) {
        let copy = free_backup(model_dir)?;
        std::fs::copy(&path, &copy).map_err(|e| Error::io(&copy, &e))?;
        sync(&copy)?;
        std::fs::set_permissions(&part, meta.permissions()).map_err(|e| Error::io(&part, &e))?;
        backup = Some(copy);
    }
    std::fs::rename(&part, &path).map_err(|e| Error::io(&path, &e))?;
    sync(target_dir)?;
    // It has the copy.
    sync(model_dir)?;
    Ok(backup)
}

/// Returns the first free path of `millpond.toml.bak`, `millpond.toml.bak.2` and so on. A copy that
/// exists may have the settings that the user wrote, so it is not replaced.
fn free_backup(model_dir: &Path) -> Result<PathBuf> {
    let name = |number: u32| match number {
        1 => format!("{MODEL_FILE}.bak"),
        number => format!("{MODEL_FILE}.bak.{number}"),
    };
    let mut copies = (1..=BACKUPS_MAX).map(|number| model_dir.join(name(number)));
    copies.find(|copy| copy.symlink_metadata().is_err()).ok_or_else(|| {
        Error::exhausted(format!(
            "{}: there are {BACKUPS_MAX} copies of {MODEL_FILE}; remove some",
            model_dir.display()
        ))
    })
}

/// Writes a file or a directory to the disk.
fn sync(path: &Path) -> Result<()> {
    std::fs::File::open(path).and_then(|file| file.sync_all()).map_err(|e| Error::io(path, &e))
}

/// Returns the lines that differ, with `-` and `+` before them, in the order of the texts.
pub(super) fn difference(before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    if old.len().max(new.len()) > DIFF_LINES_MAX {
        return format!("{} lines become {}\n", old.len(), new.len());
    }
    // Lengths of the longest common subsequences of the rests.
    let mut common = vec![vec![0usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let mut i = 0;
    let mut j = 0;
    let mut lines = String::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || common[i + 1][j] >= common[i][j + 1]) {
            lines += &format!("-{}\n", old[i]);
            i += 1;
        } else {
            lines += &format!("+{}\n", new[j]);
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> TunePoint {
        TunePoint { delay_us: 2000, max_batch: 16, ..TunePoint::batches(2) }
    }

    const SETTINGS: &str =
        "max-batch = 16\nmax-queue-delay = \"2ms\"\nmode = \"async\"\nthreads = 2\n";

    #[test]
    fn an_empty_file_gets_a_section() {
        assert_eq!(with_point("", &point()).unwrap(), format!("[schedule]\n{SETTINGS}"));
        let intra = TunePoint { intra_op: 4, ..TunePoint::sync(1, 1) };
        assert_eq!(
            with_point("", &intra).unwrap(),
            "intra-op-threads = 4\n[schedule]\nmode = \"sync\"\nthreads = 1\n"
        );
    }

    #[test]
    fn everything_else_stays_as_it_was_written() {
        let text = "# mine\npolicy  =  \"all\" # both\n\n[schedule] # here\nweight = 3\n  mode = \"sync\" # for now\n\
                    \n[schedule.inputs.x]\naxes = [3]\n[warmup]\ndims = { x = [\n  1, # one\n  3,\n] }";
        let after = with_point(text, &point()).unwrap();
        assert_eq!(
            after,
            "# mine\npolicy  =  \"all\" # both\n\n[schedule] # here\n\
             max-batch = 16\nmax-queue-delay = \"2ms\"\nthreads = 2\nweight = 3\n  mode = \"async\" # for now\n\
             \n[schedule.inputs.x]\naxes = [3]\n[warmup]\ndims = { x = [\n  1, # one\n  3,\n] }"
        );
        // Once written, nothing more changes.
        assert_eq!(with_point(&after, &point()).unwrap(), after);
    }

    #[test]
    fn a_section_is_added_after_its_own_parts() {
        let text = "intra-op-threads = 4\n[schedule.inputs.x]\naxes = [3]";
        let after = with_point(text, &point()).unwrap();
        assert_eq!(
            after,
            format!(
                "intra-op-threads = 1\n[schedule.inputs.x]\naxes = [3]\n\n[schedule]\n{SETTINGS}"
            )
        );
    }

    #[test]
    fn preferred_sizes_above_the_batch_are_removed() {
        let text = "[schedule]\npreferred-batch-sizes = [8, 16, 64]\n";
        assert!(with_point(text, &point()).unwrap().contains("preferred-batch-sizes = [8, 16]\n"));
        let small = TunePoint { max_batch: 128, ..point() };
        assert!(with_point(text, &small).unwrap().contains("[8, 16, 64]"));
    }

    #[test]
    fn settings_without_merging_drop_its_condition() {
        let text = "[schedule]\ndata-dependent-shapes = true\n";
        assert!(with_point(text, &point()).unwrap().contains("data-dependent-shapes = true\n"));
        let after = with_point(text, &TunePoint::sync(2, 1)).unwrap();
        assert!(after.contains("data-dependent-shapes = false\n"), "{after}");
    }

    #[test]
    fn the_largest_batch_is_an_allowed_size() {
        let text = "[schedule]\nallowed-batch-sizes = [1, 8]\n";
        let after = with_point(text, &point()).unwrap();
        assert!(after.contains("allowed-batch-sizes = [1, 8, 16]\n"), "{after}");
        let text = "[schedule]\nallowed-batch-sizes = [1, 64]\n";
        assert!(with_point(text, &point()).unwrap().contains("allowed-batch-sizes = [1, 64]\n"));
    }

    #[test]
    fn an_unknown_form_is_an_error_with_the_lines_to_write() {
        for text in ["schedule = { weight = 2 }\n", "schedule.weight = 2\n", "schedule = 1\n"] {
            let error = with_point(text, &point()).unwrap_err();
            assert!(error.message().contains("max-batch = 16"), "{error}");
        }
        // Inline, and everything is there already.
        let text = "schedule = { max-batch = 1, max-queue-delay = \"0ms\", mode = \"sync\", threads = 1 }\n";
        let after = with_point(text, &point()).unwrap();
        assert!(after.starts_with(
            "schedule = { max-batch = 16, max-queue-delay = \"2ms\", mode = \"async\""
        ));
        assert!(with_point("a = [", &point()).is_err());
    }

    #[test]
    fn a_file_is_replaced_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), "");
        assert_eq!(replace(dir.path(), "a = 1\n").unwrap(), None);
        let backup = replace(dir.path(), "a = 2\n").unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(&backup).unwrap(), "a = 1\n");
        assert_eq!(read(dir.path()).unwrap(), "a = 2\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        // The copy of the first call stays.
        let second = replace(dir.path(), "a = 3\n").unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(backup).unwrap(), "a = 1\n");
        assert_eq!(std::fs::read_to_string(second).unwrap(), "a = 2\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn the_target_of_a_link_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let model_dir = dir.path().join("model");
        std::fs::create_dir(&model_dir).unwrap();
        std::fs::write(dir.path().join("shared.toml"), "a = 1\n").unwrap();
        let link = model_dir.join(MODEL_FILE);
        std::os::unix::fs::symlink("../shared.toml", &link).unwrap();
        let of_another_model = dir.path().join(".millpond.toml.part");
        std::fs::write(&of_another_model, "b = 1\n").unwrap();
        let backup = replace(&model_dir, "a = 2\n").unwrap().unwrap();
        assert_eq!(backup, model_dir.join("millpond.toml.bak"));
        assert_eq!(std::fs::read_to_string(backup).unwrap(), "a = 1\n");
        assert!(link.is_symlink());
        let shared = std::fs::read_to_string(dir.path().join("shared.toml")).unwrap();
        assert_eq!(shared, "a = 2\n");
        assert_eq!(std::fs::read_to_string(of_another_model).unwrap(), "b = 1\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn differences_are_lines() {
        assert_eq!(difference("a\nb\nc\n", "a\nx\nc\nd\n"), "-b\n+x\n+d\n");
        assert_eq!(difference("", "a\n"), "+a\n");
        assert_eq!(difference("a\n", "a\n"), "");
    }
}
