//! [`Record`]: one figure.

use serde::Serialize;

/// One figure: the median over the rounds, unless the metric says otherwise. One line of the JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Record {
    pub(crate) scenario: &'static str,
    pub(crate) subject: String,
    pub(crate) metric: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The name of the figure that the value is a multiple of: the median of the ratios of each
    /// round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) against: Option<String>,
}

/// The unit of a comparison.
pub(crate) const RATIO: &str = "ratio";

/// A number with a readable number of digits, and its unit.
pub(crate) fn figure(value: f64, unit: &str) -> String {
    match unit {
        RATIO | "" => number(value),
        "1/s" => format!("{}/s", number(value)),
        unit => format!("{} {unit}", number(value)),
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => grouped(&format!("{value:.0}")),
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The digits, with a comma before every three.
fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(against: Option<&str>) -> Record {
        Record {
            scenario: "uncontended",
            subject: "lockcore".into(),
            metric: "pairs".into(),
            value: 0.975,
            unit: RATIO,
            against: against.map(str::to_owned),
        }
    }

    #[test]
    fn a_line_of_json_says_what_it_is_compared_with_only_if_it_is() {
        let line = serde_json::to_string(&record(Some("floor"))).unwrap();
        let expected = r#"{"scenario":"uncontended","subject":"lockcore","metric":"pairs","value":0.975,"unit":"ratio","against":"floor"}"#;
        assert_eq!(line, expected);
        assert!(!serde_json::to_string(&record(None)).unwrap().contains("against"));
    }

    #[test]
    fn figures_are_short() {
        let figures = [
            (1234567.8, "1/s"),
            (999.6, ""),
            (12.34, "us"),
            (1.234, RATIO),
            (0.0123, "%"),
            (0.0, "B"),
        ];
        let texts: Vec<_> = figures.iter().map(|(value, unit)| figure(*value, unit)).collect();
        assert_eq!(texts, ["1,234,568/s", "1000", "12.3 us", "1.23", "0.012 %", "0 B"]);
    }
}
