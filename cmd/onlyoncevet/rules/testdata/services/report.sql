/* what was inserted today */
(select count(*) from orders where note = 'update')
union all (select 0)
