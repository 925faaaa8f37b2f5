//! Source lines of the user.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::{PoisonError, RwLock};

thread_local! {
    /// Whether `SCOPE` is set.
    static SCOPED: Cell<bool> = const { Cell::new(false) };
    static SCOPE: RefCell<Scope> = const { RefCell::new(Scope { line: None, relay: None }) };
}

/// What the calls of a thread are attributed to.
#[derive(Debug, Clone, Default)]
struct Scope {
    /// The line that all calls are attributed to, inside of a [`Source::scope`].
    line: Option<Source>,
    /// A file that only passes calls on, and the line they are attributed to: see [`Source::relay`].
    relay: Option<(&'static str, Source)>,
}

/// The user's line that a node comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Source {
    /// File as the compiler names it; empty when unknown.
    pub file: Cow<'static, str>,
    /// Line, from 1; 0 when unknown.
    pub line: u32,
    /// What the user called there, where it is more than the node's own op (`embedding` of a gather); empty otherwise. Not
    /// part of the text form.
    pub function: Function,
}

impl Source {
    /// The caller's line, through `#[track_caller]`.
    #[track_caller]
    pub fn caller() -> Source {
        let at = Location::caller();
        let here = Source::new(at.file(), at.line());
        if SCOPED.get() { here.outside() } else { here }
    }

    /// The line that a call at this one is attributed to.
    #[cold]
    fn outside(self) -> Source {
        SCOPE.with_borrow(|scope| match scope {
            Scope { line: Some(line), .. } => line.clone(),
            Scope { relay: Some((file, line)), .. } if *file == self.file => line.clone(),
            _ => self,
        })
    }

    /// Until the result is dropped, [`Source::caller`] gives this thread the line that calls this function, through any calls
    /// between: what a library's own function does is attributed to its caller. Nested scopes have no effect.
    ///
    /// ```
    /// use kiln_ir::Source;
    /// #[track_caller]
    /// fn layer() -> Source {
    ///     let _line = Source::scope();
    ///     helper()
    /// }
    /// fn helper() -> Source {
    ///     Source::caller()
    /// }
    /// assert_eq!(layer().line, line!());
    /// ```
    #[track_caller]
    pub fn scope() -> SourceScope {
        let line = Source::caller();
        SourceScope::enter(|scope| Scope { line: scope.line.or(Some(line)), ..scope })
    }

    /// Until the result is dropped, a call from this file is attributed to `line`: for code that only passes calls on to other
    /// functions, whose own lines should be reported.
    pub fn relay(file: &'static str, line: Source) -> SourceScope {
        SourceScope::enter(|scope| Scope { relay: Some((file, line)), ..scope })
    }

    /// A line of a file.
    pub fn new(file: impl Into<Cow<'static, str>>, line: u32) -> Source {
        Source { file: file.into(), line, function: Function::default() }
    }

    /// This line, with the name of the function called there.
    pub fn calling(&self, function: &'static str) -> Source {
        Source { function: Function::named(function), ..self.clone() }
    }

    /// True when nothing is known.
    pub fn is_unknown(&self) -> bool {
        self.file.is_empty()
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unknown() { f.write_str("an unknown line") } else { write!(f, "{}:{}", self.file, self.line) }
    }
}

/// The name of a function that a user called, or none: a number of two bytes, for every error and every node has a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Function(u16);

/// The names so far; number n is name n − 1.
static NAMES: RwLock<Vec<&'static str>> = RwLock::new(Vec::new());

impl Function {
    /// The function of this name.
    pub fn named(name: &'static str) -> Function {
        let number = |names: &[&str]| names.iter().position(|known| *known == name).map(|at| at as u16 + 1);
        if let Some(number) = number(&NAMES.read().unwrap_or_else(PoisonError::into_inner)) {
            return Function(number);
        }
        let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = number(&names) {
            return Function(number);
        }
        if names.len() >= usize::from(u16::MAX) {
            return Function::default();
        }
        names.push(name);
        Function(names.len() as u16)
    }

    /// Its name.
    pub fn name(self) -> Option<&'static str> {
        let names = NAMES.read().unwrap_or_else(PoisonError::into_inner);
        names.get(usize::from(self.0).checked_sub(1)?).copied()
    }
}

/// See [`Source::scope`] and [`Source::relay`].
#[derive(Debug)]
pub struct SourceScope {
    before: Option<Scope>,
    /// It ends on the thread where it began.
    thread: PhantomData<*const ()>,
}

impl SourceScope {
    fn enter(change: impl FnOnce(Scope) -> Scope) -> SourceScope {
        let before = SCOPE.with_borrow_mut(|scope| {
            let before = scope.clone();
            *scope = change(before.clone());
            before
        });
        SCOPED.set(true);
        SourceScope { before: Some(before), thread: PhantomData }
    }
}

impl Drop for SourceScope {
    fn drop(&mut self) {
        let before = self.before.take().unwrap_or_default();
        SCOPED.set(before.line.is_some() || before.relay.is_some());
        SCOPE.replace(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn layer() -> [Source; 2] {
        let _line = Source::scope();
        [Source::caller(), inner()]
    }

    fn inner() -> Source {
        let _nested = Source::scope();
        Source::caller()
    }

    #[test]
    fn the_outermost_scope_counts_until_it_ends() {
        let (line, got) = (line!(), layer());
        assert!(got.iter().all(|at| at.line == line), "{got:?}");
        assert_eq!(Source::caller().line, line!());
    }

    #[test]
    fn functions_have_names_and_take_no_room() {
        let at = Source::new("user.rs", 7);
        let calling = |name| at.calling(name).function;
        assert_eq!((calling("embedding").name(), at.function.name()), (Some("embedding"), None));
        assert_eq!(calling("embedding"), calling("embedding"));
        assert_ne!(calling("embedding"), calling("one_hot"));
        assert_eq!(size_of::<Source>(), 4 * size_of::<usize>());
    }

    #[test]
    fn a_relay_stands_for_its_own_file_alone() {
        let user = Source::new("user.rs", 7);
        let relay = Source::relay(file!(), user.clone());
        assert_eq!((Source::caller(), layer()), (user.clone(), [user.clone(), user.clone()]));
        assert_eq!(Source::new("other.rs", 1).outside(), Source::new("other.rs", 1));
        drop(relay);
        assert_eq!(Source::caller().line, line!());
    }
}
