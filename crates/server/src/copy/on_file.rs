//! How many copies write to each file right now: what decides whether an asynchronous copy is the only one on its file.

use dhow_state::FileKey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Counts of running copies by destination.
#[derive(Debug, Default)]
pub(crate) struct CopiesOn(Arc<Mutex<HashMap<FileKey, usize>>>);

/// One copy that writes to a file, until dropped.
#[derive(Debug)]
pub(crate) struct OnFile {
    table: Arc<Mutex<HashMap<FileKey, usize>>>,
    file: FileKey,
}

impl CopiesOn {
    /// A copy to `file` begins.
    pub fn enter(&self, file: FileKey) -> OnFile {
        *self.0.lock().entry(file.clone()).or_default() += 1;
        OnFile { table: Arc::clone(&self.0), file }
    }
}

impl OnFile {
    /// Whether no other copy writes to the file.
    pub fn alone(&self) -> bool {
        self.table.lock().get(&self.file) == Some(&1)
    }
}

impl Drop for OnFile {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        if let Some(n) = table.get_mut(&self.file) {
            *n -= 1;
            if *n == 0 {
                table.remove(&self.file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_forgets() {
        let on = CopiesOn::default();
        let key = FileKey::new(b"f");
        let one = on.enter(key.clone());
        assert!(one.alone());
        let two = on.enter(key);
        assert!(!one.alone() && !two.alone());
        drop(one);
        assert!(two.alone());
        drop(two);
        assert!(on.0.lock().is_empty());
    }
}
