//! The operator's decisions as rows. Few, and rarely changed: all are compared whenever one changes.

use rusqlite::{Connection, Row};

use super::sqlite;
use crate::moderation::{Statement, Statements, Subject};

/// The first version of the file that has them.
const VERSION_MIN: usize = 4;

/// What was read.
#[derive(Debug, Default, PartialEq)]
pub struct Decisions {
    pub statements: Vec<Statement>,
    /// Rows that say nothing valid.
    pub unreadable: usize,
}

/// Reads all rows; none from an older file.
pub fn read(connection: &Connection) -> rusqlite::Result<Decisions> {
    if sqlite::version(connection)? < VERSION_MIN {
        return Ok(Decisions::default());
    }
    let mut select = connection.prepare("SELECT kind, subject, at, ends, reason, author FROM moderation")?;
    let mut rows = select.query([])?;
    let mut decisions = Decisions::default();
    while let Some(row) = rows.next()? {
        match statement(row) {
            Some(statement) => decisions.statements.push(statement),
            None => decisions.unreadable += 1,
        }
    }
    Ok(decisions)
}

/// None if a cell is not what it must be.
fn statement(row: &Row<'_>) -> Option<Statement> {
    let text = |column: usize| row.get::<_, String>(column).ok();
    let subject = Subject::of_kind(&text(0)?, &text(1)?).ok()?;
    let ms = |ms: i64| u64::try_from(ms).ok();
    let at_ms = ms(row.get(2).ok()?)?;
    let ends_at_ms = match row.get::<_, Option<i64>>(3).ok()? {
        Some(ends) => Some(ms(ends)?),
        None => None,
    };
    let (reason, by) = (text(4)?.into(), text(5)?.into());
    Some(Statement { subject, at_ms, ends_at_ms, reason, by }).filter(Statement::has_valid_times)
}

/// Makes the rows equal to the statements. What cannot be read stays, until there is a statement about its subject.
pub fn write(connection: &Connection, statements: &Statements) -> rusqlite::Result<()> {
    for known in read(connection)?.statements {
        if statements.get(&known.subject).is_none() {
            let row = (known.subject.kind(), known.subject.text());
            connection.execute("DELETE FROM moderation WHERE kind = ?1 AND subject = ?2", row)?;
        }
    }
    let sql = "INSERT INTO moderation VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE SET at = ?3, ends = ?4, \
               reason = ?5, author = ?6 WHERE at <> ?3 OR ends IS NOT ?4 OR reason <> ?5 OR author <> ?6";
    let mut insert = connection.prepare(sql)?;
    for statement in statements.all() {
        let (kind, text) = (statement.subject.kind(), statement.subject.text());
        let ms = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let (at, ends) = (ms(statement.at_ms), statement.ends_at_ms.map(ms));
        insert.execute((kind, text, at, ends, &*statement.reason, &*statement.by))?;
    }
    Ok(())
}
