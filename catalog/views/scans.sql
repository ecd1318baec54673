-- One row a scan of a source: what was searched for, and until when it has seen what the Hub released.
CREATE VIEW scans AS
SELECT *
FROM scan_files
UNION ALL BY NAME
-- Before there was this table, a scan's rows alone say how far it saw.
SELECT
    scanned_at,
    'screen' AS kind,
    any_value(query) AS query,
    least(scanned_at, max(greatest(last_modified, created_at))) AS watermark
FROM model_files
WHERE scanned_at < coalesce((SELECT min(scanned_at) FROM scan_files), 'infinity'::TIMESTAMP)
GROUP BY scanned_at;
