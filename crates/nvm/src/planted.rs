//! Faults in a volume's logic that are planted on purpose: what a programmer may forget or do in the wrong order. A test plants each in
//! turn and requires of the crash explorer that it be found.

/// Makes a module of the faults that can be planted in a kind of volume: `Fault`, whether one is `planted`, and `fence`, `flush` and
/// `stream`, which a fault leaves out.
///
/// Without the feature `planted-faults`, which the crate has to have and to hand on to this one, there are none: `planted` is the
/// constant `false`.
#[macro_export]
macro_rules! planted_faults {
    ($($(#[$what:meta])* $name:ident,)*) => {
        /// One thing that is not done, or not in its time.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $($(#[$what])* $name,)*
        }

        #[cfg(feature = "planted-faults")]
        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];
        }

        /// One more than the number of the fault that is planted; 0 is none.
        #[cfg(feature = "planted-faults")]
        static PLANTED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

        /// Plants a fault in all that this process does with volumes of this kind from now on.
        #[cfg(feature = "planted-faults")]
        pub fn plant(fault: Option<Fault>) {
            PLANTED.store(fault.map_or(0, |fault| fault as usize + 1), std::sync::atomic::Ordering::SeqCst);
        }

        /// Whether `fault` is planted.
        #[cfg(feature = "planted-faults")]
        pub(crate) fn planted(fault: Fault) -> bool {
            PLANTED.load(std::sync::atomic::Ordering::Relaxed) == fault as usize + 1
        }

        /// Whether `fault` is planted.
        #[cfg(not(feature = "planted-faults"))]
        #[inline]
        pub(crate) const fn planted(_fault: Fault) -> bool {
            false
        }

        /// A fence, which `fault` leaves out.
        #[inline]
        pub(crate) fn fence(region: &$crate::Region, fault: Fault, flushed: $crate::Flushed) -> $crate::Durable {
            #[cfg(feature = "planted-faults")]
            if planted(fault) {
                return $crate::Durable::pretended(flushed);
            }
            let _ = fault;
            region.fence(flushed)
        }

        /// A flush, which `fault` leaves out.
        #[inline]
        pub(crate) fn flush(
            region: &$crate::Region,
            fault: Fault,
            purpose: $crate::Purpose,
            at: u64,
            len: u64,
        ) -> $crate::Flushed {
            if planted(fault) { $crate::Flushed::none() } else { region.flush(purpose, at, len) }
        }

        /// Streams bytes; with `fault` they are only stored.
        #[inline]
        pub(crate) fn stream(
            region: &$crate::Region,
            fault: Fault,
            purpose: $crate::Purpose,
            at: u64,
            bytes: &[u8],
        ) -> $crate::Flushed {
            if planted(fault) {
                region.store(purpose, at, bytes);
                return $crate::Flushed::none();
            }
            region.stream(purpose, at, bytes)
        }
    };
}
