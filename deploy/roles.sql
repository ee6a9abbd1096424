-- The two roles of a database for Expunge: one owns the tables, the other runs the service.
-- The official PostgreSQL image runs this once, when its volume is empty.
\set ON_ERROR_STOP on
\set owner_password `cat "${SECRETS_DIR:-/run/secrets}/postgres_owner_password"`
\set service_password `cat "${SECRETS_DIR:-/run/secrets}/postgres_service_password"`
CREATE ROLE expunge_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE expunge_service LOGIN PASSWORD :'service_password';
-- Whatever the server's own databases have.
CREATE DATABASE expunge OWNER expunge_owner ENCODING 'UTF8' TEMPLATE template0;
REVOKE ALL ON DATABASE expunge FROM PUBLIC;
GRANT CONNECT ON DATABASE expunge TO expunge_service;
-- Large objects lie outside of tables, where nothing looks for what is to be forgotten.
\connect expunge
SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure) FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace
AND (proname LIKE 'lo\_%' OR proname IN ('loread', 'lowrite')) \gexec
