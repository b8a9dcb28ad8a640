//! [`Source`]: a parsed file, as tokens and as the parts that an anchor can name.

use std::ops::Range;

use super::{lua, rust};
use crate::protocol::{Result, failure};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    Lua,
}

impl Language {
    /// The tokens of a text, which may be a part of a file.
    fn tokens(self, text: &str) -> Result<Vec<Token>> {
        match self {
            Self::Rust => rust::tokens(text),
            Self::Lua => lua::tokens(text),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) at: Range<usize>,
}

/// A part of a file.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) at: Range<usize>,
}

/// The kind of a part, and what identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The body of the function with this path. A whole Lua file is a function as well, with the
    /// name of the file as its path.
    Function(String),
    Statement,
    /// The condition of an `if` or the like, or any other expression of `&&` and `||`.
    Condition,
    /// An operand of such an expression. A condition without operators is its own operand.
    Operand,
    /// A call of this function, method or Redis command.
    Call(String),
    /// An argument of such a call.
    Argument(String),
    /// The expression of a match arm, with the range of its pattern.
    Arm(Range<usize>),
    /// An assigned expression, with the range of the variable.
    Value(Range<usize>),
}

/// A parsed file.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) language: Language,
    pub(super) text: String,
    tokens: Vec<Token>,
    nodes: Vec<Node>,
}

impl Source {
    /// Parses a file. `name` is the last part of its path.
    pub(super) fn parse(language: Language, name: &str, text: String) -> Result<Self> {
        let tokens = language.tokens(&text)?;
        let nodes = match language {
            Language::Rust => rust::nodes(&text)?,
            Language::Lua => lua::nodes(name, &tokens)?,
        };
        Ok(Self { language, text, tokens, nodes })
    }

    /// The ranges of the parts within `scope` that `is_meant` accepts, in order.
    pub(super) fn within(
        &self,
        scope: &Range<usize>,
        is_meant: impl Fn(&Node) -> Result<bool>,
    ) -> Result<Vec<Range<usize>>> {
        let mut found = Vec::new();
        for node in &self.nodes {
            let is_inside = scope.start <= node.at.start && node.at.end <= scope.end;
            if is_inside && is_meant(node)? {
                found.push(node.at.clone());
            }
        }
        found.sort_by_key(|at| (at.start, at.end));
        found.dedup();
        Ok(found)
    }

    /// The bodies of the functions with this path.
    pub(super) fn functions(&self, path: &str) -> Vec<Range<usize>> {
        let is_it = |node: &&Node| matches!(&node.kind, Kind::Function(other) if other == path);
        self.nodes.iter().filter(is_it).map(|node| node.at.clone()).collect()
    }

    /// The innermost statement around `at`.
    pub(super) fn statement_around(&self, at: &Range<usize>) -> Option<Range<usize>> {
        let is_around = |node: &&Node| {
            node.kind == Kind::Statement && node.at.start <= at.start && at.end <= node.at.end
        };
        let around = self.nodes.iter().filter(is_around);
        around.min_by_key(|node| node.at.len()).map(|node| node.at.clone())
    }

    /// The statement that follows the one at `at` in its block.
    pub(super) fn statement_after(&self, at: &Range<usize>) -> Option<Range<usize>> {
        let is_later = |node: &&Node| node.kind == Kind::Statement && at.end <= node.at.start;
        let next = self.nodes.iter().filter(is_later).min_by_key(|node| {
            // The outermost of the statements that begin there.
            (node.at.start, usize::MAX - node.at.end)
        })?;
        self.tokens_in(&(at.end..next.at.start)).is_empty().then(|| next.at.clone())
    }

    fn tokens_in(&self, at: &Range<usize>) -> &[Token] {
        let from = self.tokens.partition_point(|token| token.at.start < at.start);
        let to = self.tokens.partition_point(|token| token.at.end <= at.end);
        &self.tokens[from..to.max(from)]
    }

    /// Returns `true` if the tokens of `words` are in `at`, one after the other.
    pub(super) fn mentions(&self, at: &Range<usize>, words: &str) -> Result<bool> {
        let words = self.words(words)?;
        let here = self.tokens_in(at);
        let is_here = |part: &[Token]| part.iter().map(|token| &token.text).eq(&words);
        Ok(here.windows(words.len()).any(is_here))
    }

    /// Returns `true` if `at` has exactly the tokens of `words`.
    pub(super) fn reads(&self, at: &Range<usize>, words: &str) -> Result<bool> {
        Ok(self.tokens_in(at).iter().map(|token| &token.text).eq(&self.words(words)?))
    }

    fn words(&self, words: &str) -> Result<Vec<String>> {
        let tokens = self.language.tokens(words)?;
        if tokens.is_empty() {
            return Err(failure("an anchor has no words"));
        }
        Ok(tokens.into_iter().map(|token| token.text).collect())
    }
}
