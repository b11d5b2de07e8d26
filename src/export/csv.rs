//! CSV: a header, then one line per server. Unknown values are empty.
//!
//! Spreadsheets evaluate a cell that starts like a formula, and server owners choose their names freely. Such a text is
//! prefixed with an apostrophe, which marks it as text. Numbers are not changed.

use super::columns::{FAULT, FIELDS, Field, Kind, fields};
use super::{Layout, shown};
use crate::client::Found;

/// What a line takes, more or less.
const LINE_BYTES: usize = 128;

pub fn write(servers: &[Found], layout: &Layout) -> String {
    let fields: Vec<&Field> = match &layout.columns {
        Some(columns) => fields(columns),
        None => FIELDS.iter().collect(),
    };
    let mut out = String::with_capacity(LINE_BYTES * (servers.len() + 1));
    if layout.header {
        let names: Vec<_> = fields.iter().map(|field| field.name).collect();
        out.push_str(&names.join(","));
        out.push('\n');
    }
    let with_failed = fields.iter().any(|field| field.name == FAULT);
    for found in shown(servers, with_failed) {
        let line = out.len();
        for (number, field) in fields.iter().enumerate() {
            if number > 0 {
                out.push(',');
            }
            write_cell(field, found, &mut out);
        }
        if out.len() == line {
            out.push_str("\"\""); // an empty line would be no server
        }
        out.push('\n');
    }
    out
}

/// Appends a cell. Most need no quotes, so they are written in place.
fn write_cell(field: &Field, found: &Found, out: &mut String) {
    let start = out.len();
    (field.write)(found, out);
    if field.kind == Kind::Plain {
        return;
    }
    let cell = out.get(start..).unwrap_or_default();
    let is_formula = is_formula(cell);
    // Without a branch for each byte.
    let is_quoted = cell.bytes().fold(false, |quoted, byte| quoted | matches!(byte, b'"' | b',' | b'\n' | b'\r'));
    if is_formula || is_quoted {
        let sign = if is_formula { "'" } else { "" };
        let quote = if is_quoted { "\"" } else { "" };
        let cell = format!("{quote}{sign}{}{quote}", cell.replace('"', "\"\""));
        out.truncate(start);
        out.push_str(&cell);
    }
}

/// Whether a spreadsheet might evaluate it. Some locales treat the full-width forms like the ASCII ones.
fn is_formula(text: &str) -> bool {
    let signs = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];
    // Nearly all begin with a letter or a digit.
    let is_harmless = text.starts_with(|first: char| first.is_ascii_alphanumeric());
    !is_harmless && text.trim_start_matches(' ').starts_with(signs) && !is_number(text)
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    [whole, part].iter().all(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::columns::Column;
    use super::super::tests::servers;
    use super::*;
    use crate::model::VersionText;

    #[test]
    fn one_line_per_server_and_quotes_where_needed() {
        let text = write(&servers(), &Layout::default());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "game,address,port,name,mode,map,players_current,players_max,version,password,official,flavor,rtt_ms,fault,protocol,via",
                r#"hyperbol,203.0.113.5,20200,"A ""quoted"", <b>&amp;</b> name",Deathmatch,a_doommkii.hba,3,8,1.08b,false,true,4,12.345,,hyperbol,"#,
                "hyperbol,203.0.113.6,20200,,,,,,,,,,,no answer,hyperbol,",
                "netpanzer,2001:db8::1,3030,,,,,,,,,,,,netpanzer,",
            ]
        );
        let columns = ["players", "address", "port"].map(|name| Column::parse(name).unwrap()).to_vec();
        let text = write(&servers(), &Layout { columns: Some(columns.clone()), ..Layout::default() });
        assert_eq!(
            text, "players_current,players_max,address,port\n3,8,203.0.113.5,20200\n,,2001:db8::1,3030\n",
            "without the fault column, no failed servers"
        );
        let text = write(&servers(), &Layout { columns: Some(columns), header: false, ..Layout::default() });
        assert_eq!(text.lines().count(), 2);
        let columns = vec![Column::parse("name").unwrap()];
        let text = write(&servers(), &Layout { columns: Some(columns), ..Layout::default() });
        assert_eq!(text, "name\n\"A \"\"quoted\"\", <b>&amp;</b> name\"\n\"\"\n", "no line is empty");
    }

    #[test]
    fn a_parser_that_shares_nothing_reads_the_same_texts() {
        for name in ["", "plain", "a,b", "a\"b", "\"", "a\nb", "a\r\nb", "'", ",\",\"", "ü", "=1,2", "=\"x\""] {
            let mut one = servers();
            one.truncate(1);
            one[0].facts.name = name.into();
            let text = write(&one, &Layout::default());
            let mut reader = ::csv::Reader::from_reader(text.as_bytes());
            let record = reader.records().next().unwrap().unwrap();
            let expected = if is_formula(name) { format!("'{name}") } else { name.into() };
            assert_eq!((&record[3], record.len()), (&*expected, FIELDS.len()), "{text}");
        }
    }

    #[test]
    fn no_text_is_a_formula_and_numbers_stay_numbers() {
        let cases = [
            ("=HYPERLINK(\"http://x\")", "'=HYPERLINK(\"http://x\")"),
            ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\r=1", "'\r=1"),
            (" =1", "' =1"),
            ("＝1+1", "'＝1+1"),
            ("-", "'-"),
            ("-=[ clan ]=-", "'-=[ clan ]=-"),
            ("-5", "-5"),
            ("+3.25", "+3.25"),
            ("1=1", "1=1"),
            ("a-b", "a-b"),
            ("", ""),
        ];
        for (name, expected) in cases {
            let mut one = servers();
            one.truncate(1);
            one[0].facts.name = name.into();
            one[0].facts.map = name.into();
            one[0].facts.version = VersionText::from("-1").unwrap();
            let text = write(&one, &Layout::default());
            let mut reader = ::csv::Reader::from_reader(text.as_bytes());
            let record = reader.records().next().unwrap().unwrap();
            let cells = (&record[3], &record[5], &record[8], &record[6]);
            assert_eq!(cells, (expected, expected, "-1", "3"));
        }
    }
}
