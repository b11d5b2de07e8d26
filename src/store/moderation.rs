//! The operator's decisions as rows. Few, and rarely changed: all are compared whenever one changes.

use rusqlite::Connection;

use super::sqlite;
use crate::moderation::{Statement, Statements, Subject};

/// The first version of the file that has them.
const VERSION_MIN: usize = 4;

/// Reads all valid rows; none from an older file.
pub fn read(connection: &Connection) -> rusqlite::Result<Vec<Statement>> {
    if sqlite::version(connection)? < VERSION_MIN {
        return Ok(Vec::new());
    }
    let mut select = connection.prepare("SELECT kind, subject, at, ends, reason, author FROM moderation")?;
    let mut rows = select.query([])?;
    let mut statements = Vec::new();
    while let Some(row) = rows.next()? {
        let (kind, subject): (String, String) = (row.get(0)?, row.get(1)?);
        let (at, ends): (i64, Option<i64>) = (row.get(2)?, row.get(3)?);
        let (reason, by): (String, String) = (row.get(4)?, row.get(5)?);
        let Ok(subject) = Subject::of_kind(&kind, &subject) else { continue };
        let ms = |ms: i64| u64::try_from(ms).unwrap_or(0);
        let (reason, by) = (reason.into(), by.into());
        statements.push(Statement { subject, at_ms: ms(at), ends_at_ms: ends.map(ms), reason, by });
    }
    Ok(statements)
}

/// Makes the rows equal to the statements.
pub fn write(connection: &Connection, statements: &Statements) -> rusqlite::Result<()> {
    let mut known = connection.prepare("SELECT kind, subject FROM moderation")?;
    let known = known.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let known: Vec<(String, String)> = known.collect::<rusqlite::Result<_>>()?;
    for (kind, text) in known {
        let is_kept = Subject::of_kind(&kind, &text).is_ok_and(|subject| statements.get(&subject).is_some());
        if !is_kept {
            connection.execute("DELETE FROM moderation WHERE kind = ?1 AND subject = ?2", (kind, text))?;
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
