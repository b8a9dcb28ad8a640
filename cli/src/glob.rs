//! [`Glob`]: patterns of names.

/// A pattern: `*` stands for any text, `?` for any character, `\` takes the next one literally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob(Vec<Part>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    AnyText,
    AnyCharacter,
    Just(char),
}

impl Glob {
    pub(crate) fn new(pattern: &str) -> Self {
        let mut characters = pattern.chars();
        let mut parts = Vec::new();
        while let Some(character) = characters.next() {
            parts.push(match character {
                '*' => Part::AnyText,
                '?' => Part::AnyCharacter,
                '\\' => Part::Just(characters.next().unwrap_or('\\')),
                other => Part::Just(other),
            });
        }
        Self(parts)
    }

    /// Takes at most as many steps as the product of both lengths, whatever the pattern is: only
    /// the last `*` is ever tried again.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let text: Vec<char> = text.chars().collect();
        let (mut part, mut at) = (0, 0);
        let mut again: Option<(usize, usize)> = None;
        while at < text.len() {
            match self.0.get(part) {
                Some(Part::AnyText) => {
                    again = Some((part + 1, at));
                    part += 1;
                    continue;
                }
                Some(Part::AnyCharacter) => {
                    (part, at) = (part + 1, at + 1);
                    continue;
                }
                Some(Part::Just(character)) if *character == text[at] => {
                    (part, at) = (part + 1, at + 1);
                    continue;
                }
                _ => {}
            }
            let Some((after, from)) = again else { return false };
            again = Some((after, from + 1));
            (part, at) = (after, from + 1);
        }
        self.0[part..].iter().all(|part| *part == Part::AnyText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text, is_match) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "order:42", true),
            ("order:*", "order:42", true),
            ("order:*", "border:42", false),
            ("*42", "order:4242", true),
            ("*a*b", "xaybzb", true),
            ("*a*b", "xaybz", false),
            ("a?c", "aüc", true),
            ("a?c", "ac", false),
            ("?", "", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a\\", "a\\", true),
            ("[a]", "[a]", true),
            ("A", "a", false),
            ("**", "x", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), is_match, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_does_not_take_for_ever() {
        let text = "a".repeat(512);
        assert!(!Glob::new(&format!("{}b", "a*".repeat(200))).matches(&text));
    }
}
