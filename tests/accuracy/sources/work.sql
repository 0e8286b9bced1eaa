-- A query without an end: recursion, joins, sorting, aggregation, text functions.
WITH RECURSIVE
  n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000),
  k(j) AS (SELECT 1 UNION ALL SELECT j + 1 FROM k)
SELECT count(*) FROM k WHERE (
  SELECT max(t) || min(u) FROM (
    SELECT upper(hex(i * j)) || printf('%08.3f', i / 7.0) AS t, group_concat(i % 10, ',') AS u
    FROM n GROUP BY i % 500, i / 1000 ORDER BY t LIKE '%A%', length(u), t
  )
) IS NULL;
