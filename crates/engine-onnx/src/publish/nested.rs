//! Walks over the nested messages of a model that can hold a tensor.

use std::ops::Range;

use base::Result;

use super::encode::WIRE_BYTES;
use super::schema::{DEPTH_MAX, MessageKind};
use super::wire::{Walker, WireField};

/// A field of a visited message.
pub(super) struct VisitedField {
    /// Message that has the field.
    pub(super) parent: MessageKind,
    /// Message in the field; `None` if it cannot hold a tensor.
    pub(super) child: Option<MessageKind>,
    pub(super) field: WireField,
}

/// Calls `visit` for each field of bytes of the model, in the order of the file. The fields of a
/// child follow if `visit` returns true for it.
///
/// # Errors
/// `DataLoss` if the model is damaged or its messages are nested too deep; the errors of `visit`.
pub(super) fn walk(
    walker: &mut Walker,
    visit: &mut dyn FnMut(&mut Walker, &VisitedField) -> Result<bool>,
) -> Result<()> {
    let whole = walker.whole();
    walk_message(walker, MessageKind::Model, whole, 0, visit)
}

/// Calls `visit` for each field of a message, and descends into the messages for which it returns
/// true.
fn walk_message(
    walker: &mut Walker,
    parent: MessageKind,
    range: Range<u64>,
    depth: usize,
    visit: &mut dyn FnMut(&mut Walker, &VisitedField) -> Result<bool>,
) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(
            walker.damaged(range.start, format_args!("messages nested more than {DEPTH_MAX} deep"))
        );
    }
    let mut at = range.start;
    while at < range.end {
        let field = walker.field(at, range.end)?;
        at = field.whole.end;
        if field.wire != WIRE_BYTES {
            continue;
        }
        let visited = VisitedField { parent, child: parent.child(field.number), field };
        let descends = visit(walker, &visited)?;
        if let Some(child) = visited.child.filter(|_| descends) {
            walk_message(walker, child, visited.field.payload, depth + 1, visit)?;
        }
    }
    Ok(())
}
