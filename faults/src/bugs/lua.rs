//! The parts of a Lua script, found with a small parser for Lua 5.1, the version in Redis.

use super::source::{Kind, Node, Token};
use crate::protocol::{Result, failure};

pub(super) fn tokens(text: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        let length = match next {
            _ if next.is_whitespace() => next.len_utf8(),
            _ if rest.starts_with("--[[") => until(rest, "]]")?,
            _ if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            _ => {
                let length = token_length(rest)?;
                let text = rest[..length].to_owned();
                tokens.push(Token { text, at: at..at + length });
                length
            }
        };
        at += length;
    }
    Ok(tokens)
}

/// The operators of more than one character, the longest first.
const LONG_OPERATORS: [&str; 6] = ["...", "..", "==", "~=", "<=", ">="];

fn token_length(rest: &str) -> Result<usize> {
    let first = rest.chars().next().unwrap_or(' ');
    let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
    if is_word(first) {
        // A number may have a point in it.
        let is_part = |char: char| is_word(char) || (char == '.' && first.is_ascii_digit());
        return Ok(rest.find(|char| !is_part(char)).unwrap_or(rest.len()));
    }
    if first == '\'' || first == '"' {
        let mut is_escaped = false;
        let end = rest[1..].find(|char: char| {
            let is_end = char == first && !is_escaped;
            is_escaped = char == '\\' && !is_escaped;
            is_end
        });
        return end.map(|end| end + 2).ok_or_else(|| failure("a Lua string has no end"));
    }
    if rest.starts_with("[[") {
        return until(rest, "]]");
    }
    let operator = LONG_OPERATORS.iter().find(|operator| rest.starts_with(**operator));
    Ok(operator.map_or(first.len_utf8(), |operator| operator.len()))
}

fn until(rest: &str, end: &str) -> Result<usize> {
    let found = rest.find(end).map(|at| at + end.len());
    found.ok_or_else(|| failure(format!("`{end}` is missing in Lua")))
}

/// The parts of the script with the name `file`.
pub(super) fn nodes(file: &str, tokens: &[Token]) -> Result<Vec<Node>> {
    let mut parser = Parser { tokens, next: 0, nodes: Vec::new() };
    parser.block()?;
    if parser.next < tokens.len() {
        return Err(parser.unexpected());
    }
    parser.add(Kind::Function(file.to_owned()), 0);
    Ok(parser.nodes)
}

struct Parser<'a> {
    tokens: &'a [Token],
    next: usize,
    nodes: Vec<Node>,
}

impl Parser<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.next).map_or("", |token| &token.text)
    }

    fn take(&mut self, text: &str) -> bool {
        let is_it = self.peek() == text;
        self.next += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, text: &str) -> Result<()> {
        if self.take(text) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&self) -> Box<dyn std::error::Error + Send + Sync> {
        let at = self.tokens.get(self.next).map(|token| token.at.start);
        failure(format!("`{}` at {at:?} was not expected in Lua", self.peek()))
    }

    fn name(&mut self) -> Result<String> {
        let name = self.peek().to_owned();
        if name.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_') {
            self.next += 1;
            return Ok(name);
        }
        Err(self.unexpected())
    }

    /// Adds a part that begins with the token `from` and ends before the next one.
    fn add(&mut self, kind: Kind, from: usize) {
        self.nodes.extend(self.range(from).map(|at| Node { kind, at }));
    }

    fn range(&self, from: usize) -> Option<std::ops::Range<usize>> {
        let part = self.tokens.get(from..self.next)?;
        Some(part.first()?.at.start..part.last()?.at.end)
    }

    fn block(&mut self) -> Result<()> {
        while !matches!(self.peek(), "" | "end" | "else" | "elseif" | "until") {
            let from = self.next;
            self.statement()?;
            self.add(Kind::Statement, from);
            self.take(";");
        }
        Ok(())
    }

    fn block_until_end(&mut self) -> Result<()> {
        self.block()?;
        self.expect("end")
    }

    fn statement(&mut self) -> Result<()> {
        if self.take("if") {
            loop {
                self.condition()?;
                self.expect("then")?;
                self.block()?;
                if !self.take("elseif") {
                    break;
                }
            }
            if self.take("else") {
                self.block()?;
            }
            self.expect("end")
        } else if self.take("while") {
            self.condition()?;
            self.expect("do")?;
            self.block_until_end()
        } else if self.take("for") {
            while self.name().is_ok() && self.take(",") {}
            if !self.take("=") {
                self.expect("in")?;
            }
            self.expressions(None)?;
            self.expect("do")?;
            self.block_until_end()
        } else if self.take("do") {
            self.block_until_end()
        } else if self.take("repeat") {
            self.block()?;
            self.expect("until")?;
            self.condition()
        } else if self.take("function") {
            let name = self.name()?;
            self.function(Some(name))
        } else if self.take("local") {
            if self.take("function") {
                let name = self.name()?;
                return self.function(Some(name));
            }
            let variables = self.next;
            while self.name().is_ok() && self.take(",") {}
            self.value_of(variables)
        } else if self.take("return") {
            if matches!(self.peek(), "" | "end" | "else" | "elseif" | "until" | ";") {
                return Ok(());
            }
            self.expressions(None)
        } else if self.take("break") {
            Ok(())
        } else {
            let variables = self.next;
            self.with_suffixes()?;
            while self.take(",") {
                self.with_suffixes()?;
            }
            self.value_of(variables)
        }
    }

    /// Parses what is assigned to the variables from the token `variables` on, if anything.
    fn value_of(&mut self, variables: usize) -> Result<()> {
        let variables = self.range(variables);
        if self.take("=") {
            let from = self.next;
            self.expressions(None)?;
            self.nodes.extend(
                self.range(from).zip(variables).map(|(at, of)| Node { kind: Kind::Value(of), at }),
            );
        }
        Ok(())
    }

    /// Parses the parameters and the body of a function.
    fn function(&mut self, name: Option<String>) -> Result<()> {
        self.expect("(")?;
        while !self.take(")") {
            self.next += 1;
            if self.peek().is_empty() {
                return Err(self.unexpected());
            }
        }
        let body = self.next;
        self.block()?;
        if let Some(name) = name {
            self.add(Kind::Function(name), body);
        }
        self.expect("end")
    }

    /// Parses one or more expressions, which are the arguments of `call` if there is one.
    fn expressions(&mut self, call: Option<&str>) -> Result<()> {
        loop {
            let from = self.next;
            self.expression(false)?;
            if let Some(call) = call {
                self.add(Kind::Argument(call.to_owned()), from);
            }
            if !self.take(",") {
                return Ok(());
            }
        }
    }

    fn condition(&mut self) -> Result<()> {
        self.expression(true)
    }

    fn expression(&mut self, is_condition: bool) -> Result<()> {
        let from = self.next;
        let mut operands = Vec::new();
        let mut operand = self.next;
        loop {
            while matches!(self.peek(), "not" | "-" | "#") {
                self.next += 1;
            }
            self.simple()?;
            match self.peek() {
                "and" | "or" => {
                    operands.extend(self.range(operand));
                    self.next += 1;
                    operand = self.next;
                }
                "+" | "-" | "*" | "/" | "%" | "^" | ".." | "==" | "~=" | "<" | ">" | "<="
                | ">=" => self.next += 1,
                _ => break,
            }
        }
        if is_condition || !operands.is_empty() {
            operands.extend(self.range(operand));
            self.nodes.extend(operands.into_iter().map(|at| Node { kind: Kind::Operand, at }));
            self.add(Kind::Condition, from);
        }
        Ok(())
    }

    fn simple(&mut self) -> Result<()> {
        let is_literal = |text: &str| {
            matches!(text, "nil" | "true" | "false" | "...")
                || text.starts_with(['\'', '"', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'])
                || text.starts_with("[[")
        };
        if is_literal(self.peek()) {
            self.next += 1;
            Ok(())
        } else if self.take("function") {
            self.function(None)
        } else if self.peek() == "{" {
            self.table()
        } else {
            self.with_suffixes()
        }
    }

    fn table(&mut self) -> Result<()> {
        self.expect("{")?;
        while !self.take("}") {
            if self.take("[") {
                self.expression(false)?;
                self.expect("]")?;
                self.expect("=")?;
            } else if self.tokens.get(self.next + 1).is_some_and(|token| token.text == "=") {
                self.next += 2;
            }
            self.expression(false)?;
            if !self.take(",") && !self.take(";") && self.peek() != "}" {
                return Err(self.unexpected());
            }
        }
        Ok(())
    }

    /// Parses a name or an expression in parentheses, with the fields, indices and calls after it.
    fn with_suffixes(&mut self) -> Result<()> {
        let from = self.next;
        let mut name = String::new();
        if self.take("(") {
            self.expression(false)?;
            self.expect(")")?;
        } else {
            name = self.name()?;
        }
        loop {
            if self.take(".") || self.take(":") {
                let of = std::mem::take(&mut name);
                name = format!("{of}.{}", self.name()?);
            } else if self.take("[") {
                self.expression(false)?;
                self.expect("]")?;
            } else if self.take("(") {
                // The name of a Redis command is the first argument of `redis.call`.
                let is_command = matches!(name.as_str(), "redis.call" | "redis.pcall");
                let called = if is_command { self.peek().replace('\'', "") } else { name.clone() };
                if !self.take(")") {
                    self.expressions(Some(&called))?;
                    self.expect(")")?;
                }
                self.add(Kind::Call(called), from);
            } else {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::source::Language, *};
    use crate::bugs::source::Source;

    const SCRIPT: &str = "-- `if` in a comment
local function last(...)
    local a, b = unpack(redis.call('HMGET', KEYS[1], ARGV[1], \"it's\")), {x = 1, [2] = 'y'; 3}
    return a and b or -#'[['
end
for i = 1, #KEYS, 2 do
    if i ~= 3 and (last(i) or not KEYS[i]) then
        redis.pcall('DEL', KEYS[i]); break
    elseif i == 4 then
        repeat i = i + 1.5 until i >= 9
    end
end
return [[end]] .. 'x'
";

    #[test]
    fn a_script_is_parsed_into_its_parts() {
        let source = Source::parse(Language::Lua, "a.lua", SCRIPT.into()).unwrap();
        let all = source.functions("a.lua").remove(0);
        let of = |is_it: fn(&Kind) -> bool| -> Vec<&str> {
            let found = source.within(&all, |node| Ok(is_it(&node.kind))).unwrap();
            found.into_iter().map(|at| &SCRIPT[at]).collect()
        };
        assert_eq!(
            of(|kind| *kind == Kind::Condition),
            [
                "a and b or -#'[['",
                "i ~= 3 and (last(i) or not KEYS[i])",
                "last(i) or not KEYS[i]",
                "i == 4",
                "i >= 9"
            ]
        );
        assert_eq!(of(|kind| *kind == Kind::Call("HMGET".into())).len(), 1);
        assert_eq!(of(|kind| *kind == Kind::Argument("DEL".into())), ["'DEL'", "KEYS[i]"]);
        assert_eq!(of(|kind| matches!(kind, Kind::Value(_))).len(), 2);
        let body = source.functions("last").remove(0);
        assert!(SCRIPT[body].starts_with("local a, b"));
    }

    #[test]
    fn what_is_no_lua_is_refused() {
        for script in ["if x then", "x = ", "local x = 'y", "end", "f(", "x = {1 2}"] {
            let parsed = Source::parse(Language::Lua, "a.lua", script.into());
            assert!(parsed.is_err(), "{script}");
        }
    }
}
