//! Being written.
/// x
#[derive(Debug)]
pub struct Region;
impl Region { 
    /// x
    pub fn as_slice(&self) -> &[u8] { &[] } }
