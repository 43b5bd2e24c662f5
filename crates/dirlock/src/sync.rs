//! The mutex: parking_lot's, or under test that of shuttle, at which it switches threads.

#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;

#[cfg(test)]
pub(crate) use explored::Mutex;

#[cfg(test)]
mod explored {
    use shuttle::sync::{Mutex as Inner, MutexGuard};

    /// shuttle's mutex, without poisoning.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(Inner<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Inner::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(|e| e.into_inner())
        }
    }
}
