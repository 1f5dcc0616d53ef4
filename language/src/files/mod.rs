//! Files: opened without waiting, told apart by what they are and not by their names, and written as a whole.

mod identity;
mod open;
mod part;

pub use identity::{Identity, identity};
pub use open::{open_regular, read_at_most};
pub use part::{part_in, sync_folder};
