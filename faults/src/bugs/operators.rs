//! [`Edit`]: a change of the source at an anchor. [`apply`](super::apply) makes it.

use super::source::Language;

/// The function that an edit changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    pub(super) crate_: Crate,
    pub(super) path: &'static str,
}

/// A crate, or the scripts in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crate {
    Core,
    Redis,
    Scripts,
}

impl Crate {
    pub(super) const ALL: [Self; 3] = [Self::Core, Self::Redis, Self::Scripts];

    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Core => "lockcore/src",
            Self::Redis => "backend-redis/src",
            Self::Scripts => "backend-redis/src/scripts",
        }
    }

    pub(super) fn language(self) -> Language {
        match self {
            Self::Core | Self::Redis => Language::Rust,
            Self::Scripts => Language::Lua,
        }
    }
}

/// A function of lockcore: `name`, `Type::name`, or `Trait for Type::name`.
pub(super) fn core(path: &'static str) -> Function {
    Function { crate_: Crate::Core, path }
}

/// A function of lockcore-redis. The path is as for [`core()`].
pub(super) fn redis(path: &'static str) -> Function {
    Function { crate_: Crate::Redis, path }
}

/// A function in the Lua scripts, or a whole script by the name of its file.
pub(super) fn lua(path: &'static str) -> Function {
    Function { crate_: Crate::Scripts, path }
}

/// A part of a function, by tokens that are in it. White space does not matter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Body,
    Statement(&'static str),
    Condition(&'static str),
    Operand(&'static str),
    Call(&'static str),
    Argument(&'static str, &'static str),
    Arm(&'static str),
    Value(&'static str),
}

impl Function {
    /// The body of the function.
    pub(super) fn body(self) -> Spot {
        self.part(Part::Body)
    }

    /// The innermost statement that calls `function`: a function, a method, or a Redis command.
    pub(super) fn statement(self, function: &'static str) -> Spot {
        self.part(Part::Statement(function))
    }

    /// A condition that contains `words`: that of an `if`, a `while` or a guard, or any other
    /// expression of `&&` and `||`.
    pub(super) fn condition(self, words: &'static str) -> Spot {
        self.part(Part::Condition(words))
    }

    /// An operand of a condition, between `&&` and `||`, that contains `words`.
    pub(super) fn operand(self, words: &'static str) -> Spot {
        self.part(Part::Operand(words))
    }

    /// A call of `function`: a function, a method, or a Redis command.
    pub(super) fn call(self, function: &'static str) -> Spot {
        self.part(Part::Call(function))
    }

    /// The argument `words` of a call of `function`.
    pub(super) fn argument(self, function: &'static str, words: &'static str) -> Spot {
        self.part(Part::Argument(function, words))
    }

    /// The expression of the match arm whose pattern contains `words`.
    pub(super) fn arm(self, words: &'static str) -> Spot {
        self.part(Part::Arm(words))
    }

    /// The expression that is assigned to `variable`, by `let`, `local` or `=`.
    pub(super) fn value(self, variable: &'static str) -> Spot {
        self.part(Part::Value(variable))
    }

    fn part(self, part: Part) -> Spot {
        Spot { function: self, part, which: (1, 1) }
    }
}

/// An anchor: exactly one place in the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) function: Function,
    pub(super) part: Part,
    pub(super) which: (usize, usize),
}

impl Spot {
    /// Part number `number` of exactly `of` such parts. By default, there must be exactly one.
    pub(super) fn which(self, number: usize, of: usize) -> Self {
        Self { which: (number, of), ..self }
    }

    /// Replaces it by `text`, in which `{}` stands for the original.
    pub(super) fn becomes(self, text: &'static str) -> Edit {
        Edit { spot: self, change: Change::Becomes(text) }
    }

    /// Replaces a condition by `true`.
    pub(super) fn always(self) -> Edit {
        self.becomes("true")
    }

    /// Replaces a condition by `false`.
    pub(super) fn never(self) -> Edit {
        self.becomes("false")
    }

    /// Removes it.
    pub(super) fn removed(self) -> Edit {
        self.becomes("")
    }

    /// Swaps a statement with the next one in its block.
    pub(super) fn swapped_with_next(self) -> Edit {
        Edit { spot: self, change: Change::SwappedWithNext }
    }
}

/// A change of the source at an anchor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edit {
    pub(super) spot: Spot,
    pub(super) change: Change,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Becomes(&'static str),
    SwappedWithNext,
}
