//! The parameters that tuning may choose: how a launch is split and blocked. Each that is not set is chosen by the code that
//! needs it; none of them changes results beyond the order in which sums are taken.

use std::fmt;

/// Declares the choices with their names in text.
macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Choices for one kernel; rendered like `threads=1 tasks=2`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Choices {
            $($(#[$doc])* pub $name: Option<usize>,)*
        }

        impl Choices {
            /// Parses the text form; `None` where it is not valid.
            pub fn parse(text: &str) -> Option<Choices> {
                let mut choices = Choices::default();
                for word in text.split_whitespace() {
                    let (name, value) = word.split_once('=')?;
                    let value = Some(value.parse().ok()?);
                    match name {
                        $(stringify!($name) => choices.$name = value,)*
                        _ => return None,
                    }
                }
                Some(choices)
            }
        }

        impl fmt::Display for Choices {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let all = [$((stringify!($name), self.$name),)*];
                let made = all.iter().filter_map(|(name, value)| value.map(|value| format!("{name}={value}")));
                f.write_str(&made.collect::<Vec<_>>().join(" "))
            }
        }
    };
}

choices! {
    /// The most threads.
    threads,
    /// Tasks per thread.
    tasks,
    /// Loops: vectors per iteration.
    copies,
    /// Loops: 0 never splits a reduction into two kernels, 1 does so wherever rows are long.
    parts,
    /// Products: 0 packs the right operand, 1 streams it in place for more rows than usual.
    stream,
    /// Products: for one row of A, 1 reads the rows of W one after the other, more side by side.
    streams,
    /// Products: KiB of a packed panel of the left operand.
    panel,
    /// Attention: queries per task.
    rows,
    /// Attention: the fewest keys that are worth a task of their own.
    keys,
}

impl Choices {
    /// The number of threads to use, of those available.
    pub(crate) fn threads_of(&self, all: usize) -> usize {
        self.threads.map_or(all, |most| most.clamp(1, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_reads_back() {
        let choices = Choices { threads: Some(1), panel: Some(44), ..Default::default() };
        assert_eq!(choices.to_string(), "threads=1 panel=44");
        assert_eq!(Choices::parse(&choices.to_string()), Some(choices));
        assert_eq!(Choices::parse(""), Some(Choices::default()));
        assert_eq!(Choices::parse("speed=2"), None);
        assert_eq!(Choices::parse("threads=fast"), None);
        assert_eq!(Choices::parse("threads"), None);
    }
}
